/* Normalizes three rows by a function that was written in Python. */
#include <math.h>
#include <stdio.h>

#include "libnorm.h"

enum { ROWS = 3, COLUMNS = 1024 };

int main(void) {
  static float x[ROWS][COLUMNS], w[COLUMNS], y[ROWS][COLUMNS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < COLUMNS; ++j) x[i][j] = sinf((float)(i * COLUMNS + j)), w[j] = 1;

  int64_t rows[] = {ROWS, COLUMNS}, columns[] = {COLUMNS};
  const DLDataType float32 = {kDLFloat, 32, 1};
  const DLDevice cpu = {kDLCPU, 0};
  const DLTensor in = {x, cpu, 2, float32, rows, NULL, 0}, weights = {w, cpu, 1, float32, columns, NULL, 0};
  DLTensor out = {y, cpu, 2, float32, rows, NULL, 0};

  if (norm(&in, &weights, 1e-5, &out, NULL) != MLIRFUSE_OK) {
    fprintf(stderr, "%s\n", norm_error());
    return 1;
  }
  double sum = 0, squares = 0;
  for (int j = 0; j < COLUMNS; ++j) sum += y[1][j], squares += y[1][j] * y[1][j];
  printf("%s: mean %.3f, variance %.3f\n", norm_target(), fabs(sum / COLUMNS), squares / COLUMNS);
  return 0;
}
