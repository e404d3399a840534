/* What calls of all exported functions have in common. */
#ifndef MLIRFUSE_EXPORT_ABI
#define MLIRFUSE_EXPORT_ABI 1

#include <stddef.h>
#include <stdint.h>

/* DLPack's tensor. Strides count elements; NULL strides: C-contiguous. */
#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION
typedef enum { kDLCPU = 1, kDLCUDA = 2 } DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 } DLDataTypeCode;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;
#endif
#endif

/* What a call returns: 0, or what is wrong; NAME_error() has it in words. After an error nothing was computed, but for
   MLIRFUSE_INDEX and MLIRFUSE_CUDA. */
enum {
  MLIRFUSE_OK = 0,
  MLIRFUSE_TYPE = 1,      /* a null pointer, another dtype or rank */
  MLIRFUSE_SHAPE = 2,     /* extents that do not go together, or are not those that were exported */
  MLIRFUSE_STRIDES = 3,   /* other strides than were exported */
  MLIRFUSE_ALIGNMENT = 4, /* an address that is no multiple of the element's size */
  MLIRFUSE_DEVICE = 5,    /* arrays elsewhere, or a device that there is no code for */
  MLIRFUSE_VALUE = 6,     /* a number that is a constant of the code, with another value */
  MLIRFUSE_OVERLAP = 7,   /* what is written shares memory with another array */
  MLIRFUSE_SIZES = 8,     /* no code was exported for these sizes */
  MLIRFUSE_MEMORY = 9,    /* no memory for a result or the workspace */
  MLIRFUSE_INDEX = 10,    /* an index that is not in its array */
  MLIRFUSE_CUDA = 11,     /* the driver reports a failure */
};

/* How a call is to run; every field may be 0. */
typedef struct {
  uint32_t abi; /* MLIRFUSE_EXPORT_ABI, or 0 */
  /* The CUstream to launch on. The call does not wait for it. */
  void *stream;
  /* Memory for a result whose data is NULL, with dtype, shape and device filled in; NULL where there is none. */
  void *(*allocate)(void *context, const DLTensor *result, size_t bytes);
  /* Runs run(begin, end, data) over [0, tasks), in parts of grain tasks at least, and waits for all. */
  void (*parallel_for)(void *context, void (*run)(int64_t begin, int64_t end, void *data), void *data, int64_t tasks,
                       int64_t grain);
  void *context;
} mlirfuse_call;

#elif MLIRFUSE_EXPORT_ABI != 1
#error "this header and one included before it are of different versions of mlirfuse's ABI"
#endif
