/* A libcuda.so.1 without a GPU: the functions that Triton's driver module and launchers call. Memory is the host's, and
 * a launch is passed to Python. Calling a missing function ends the process with its name. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

/* Each returns a CUresult. */
typedef struct {
    int (*load)(const void *image, size_t bytes, void *module);
    int (*find)(void *module, const char *name, void *function);
    int (*attribute)(void *function, int attribute, int *value);
    int (*launch)(void *function, unsigned grid[3], unsigned block[3], unsigned shared_bytes, void *stream,
                  unsigned num_attributes, void **parameters);
} Callbacks;

static Callbacks python;
static uintptr_t last_handle = 0x4D0000000ull;
static CUcontext current;
static int primary;

void set_callbacks(const Callbacks *callbacks) { python = *callbacks; }

static CUresult missing(const char *what) {
    fprintf(stderr, "the emulated driver has no %s\n", what);
    abort();
}

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) {
    return *text = error == CUDA_ERROR_LAUNCH_FAILED ? "the emulator found a fault" : "an error of the emulated driver", CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int size, CUdevice device) { return snprintf(name, size, "emulated sm_90"), CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { return *bytes = 141ull << 30, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const int known[][2] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == (int)attribute) return *value = known[i][1], CUDA_SUCCESS;
    return missing("such device attribute");
}

CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return missing(__func__); }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return missing(__func__); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return *context = (CUcontext)&primary, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}

/* A cubin is an ELF file, which ends with its section headers or its program headers. */
static size_t bytes_of_elf(const unsigned char *elf) {
    uint64_t programs = *(uint64_t *)(elf + 0x20), sections = *(uint64_t *)(elf + 0x28);
    const uint16_t *sizes = (const uint16_t *)(elf + 0x36);
    programs += (uint64_t)sizes[0] * sizes[1], sections += (uint64_t)sizes[2] * sizes[3];
    return sections > programs ? sections : programs;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (memcmp(image, "\177ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
    *module = (CUmodule)(last_handle += 64);
    return python.load(image, bytes_of_elf(image), *module);
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    return cuModuleLoadData(module, image);
}
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)(last_handle += 64);
    return python.find(module, name, *function);
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    return python.attribute(function, attribute, value);
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) { return missing(__func__); }

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return missing("such pointer attribute");
    return *(CUdeviceptr *)data = pointer, CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **parameters, void **extra) {
    unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    if (extra) return missing("extra of a launch");
    return python.launch(function, grid, block, c->sharedMemBytes, c->hStream, c->numAttrs, parameters);
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared_bytes, CUstream stream, void **parameters, void **extra) {
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    if (extra) return missing("extra of a launch");
    return python.launch(function, grid, block, shared_bytes, stream, 0, parameters);
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dim,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *element,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    return missing(__func__);
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dim,
                                 const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels,
                                 cuuint32_t pixels, const cuuint32_t *element, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    return missing(__func__);
}
