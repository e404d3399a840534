/* Calls exported functions on the arrays in a file, and compares their results with those in it, byte for byte:
       check FILE REPEATS
   FILE: records of int64 (function, n, m), then the inputs and the result as they lie in memory. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusion.h"
#include "heat.h"
#include "norm.h"
#include "softmax.h"

static int64_t calls, wrong;

static void *read_array(FILE *file, size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (fread(memory, 1, bytes, file) != bytes) exit(3);
  return memory;
}

static DLTensor tensor(void *data, int32_t rank, int64_t *shape) {
  DLTensor x = {data, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, NULL, 0};
  return x;
}

static int call(int64_t function, const DLTensor *x, const DLTensor *w, DLTensor *y, int shapes) {
  if (function == 0) return shapes ? norm_shapes(x, w, 1e-5, y) : norm(x, w, 1e-5, y, NULL);
  if (function == 1) return shapes ? softmax_shapes(x, y) : softmax(x, y, NULL);
  if (function == 2) return shapes ? heat_shapes(x, y) : heat(x, y, NULL);
  return shapes ? fusion_shapes(x, w, y) : fusion(x, w, y, NULL);
}

static void record(FILE *file, const int64_t *head, int repeats) {
  const int64_t function = head[0], n = head[1], m = head[2];
  int64_t shape[2] = {n, m}, columns[1] = {m}, found[2];
  DLTensor x = tensor(read_array(file, (size_t)(n * m) * 4), 2, shape), w = {0}, y = {0};
  if (function == 0 || function == 3) w = tensor(read_array(file, (size_t)m * 4), 1, columns);
  void *expected = read_array(file, (size_t)(n * m) * 4);
  y.shape = found;
  if (call(function, &x, &w, &y, 1) || y.ndim != 2 || found[0] != n || found[1] != m) ++wrong;
  y.data = aligned_alloc(64, (size_t)(n * m) * 4 / 64 * 64 + 64);
  for (int k = 0; k < repeats; ++k, ++calls) {
    memset(y.data, 0xff, (size_t)(n * m) * 4);
    if (call(function, &x, &w, &y, 0) || memcmp(y.data, expected, (size_t)(n * m) * 4)) ++wrong;
  }
  free(x.data), free(w.data), free(y.data), free(expected);
}

int main(int count, char **arguments) {
  FILE *file = fopen(arguments[1], "rb");
  int64_t head[3];
  size_t used = 0;
  for (int number = 0; count == 3 && fread(head, sizeof head, 1, file) == 1; ++number) {
    record(file, head, atoi(arguments[2]));
    if (number == 3) used = mallinfo2().uordblks; /* each function has been called */
  }
  fclose(file);
  printf("%s calls=%lld wrong=%lld grown=%lld\n", norm_target(), (long long)calls, (long long)wrong,
         (long long)mallinfo2().uordblks - (long long)used);
  return wrong != 0;
}
