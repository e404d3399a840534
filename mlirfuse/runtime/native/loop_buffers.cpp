#include "loop_buffers.h"

#include <algorithm>

int64_t mlirfuse_loop_allocate(MlirfuseLoopBuffer* table, const int64_t* bases, int64_t count, int64_t bytes,
                               int64_t site, MlirfuseLoopMemory* memory) {
  while (table->address && std::find(bases, bases + count, table->address) != bases + count) ++table;
  if (table->address && table->size >= bytes) return table->address;
  if (!table->address)
    table[1].address = 0;  // the new end
  else
    bytes *= 2;  // it has grown, and may again
  int64_t address = memory->next;
  if (bytes <= memory->end - address)
    memory->next = (address + bytes + 63) & -64;
  else
    address = memory->allocate(site, bytes);
  *table = {address, bytes};
  return address;
}

void mlirfuse_loop_hold(MlirfuseLoopBuffer* table, int64_t address) {
  while (table->address && table->address != address) ++table;
  for (; table->address; ++table) *table = table[1];
}
