/* The instruction sets of x86-64 that this machine has. Exported libraries have it in them, the native module includes it. */
#pragma once

static inline void cpuid(unsigned leaf, unsigned *r) {
  __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(0));
}

/* The level of x86-64 that this processor and the system have: 1, 3 or 4. */
static inline int processor_level(void) {
  unsigned r[4], state, high;
  cpuid(0, r);
  if (r[0] < 7) return 1;
  cpuid(1, r);
  const unsigned v3 = 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29; /* fma movbe osxsave avx f16c */
  if ((r[2] & v3) != v3) return 1;
  __asm__ volatile("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
  if ((state & 0x6) != 0x6) return 1;
  cpuid(7, r);
  const unsigned here = r[1], avx2 = 1u << 3 | 1u << 5 | 1u << 8; /* bmi avx2 bmi2 */
  cpuid(0x80000001, r);
  if ((here & avx2) != avx2 || !(r[2] & 1u << 5)) return 1; /* lzcnt */
  const unsigned v4 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31; /* avx512 f dq cd bw vl */
  return (here & v4) == v4 && (state & 0xe0) == 0xe0 ? 4 : 3;
}
