// The part of ONNX Runtime's C interface that a custom operator needs.
//
// ONNX Runtime gives a library a table of functions; new versions only append to it. Here a function has its number in that
// table, and is called through its type. `kOnnxApiVersion` is the first version with all of them.
#pragma once

#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtTensorTypeAndShapeInfo;
struct OrtValue;

// The table: only pointers to functions, in the order of their numbers.
struct OrtApi {
    using Function = void (*)();
    Function functions[275];
};

struct OrtApiBase {
    const OrtApi* (*get_api)(uint32_t version);  // null: ONNX Runtime is older
    const char* (*get_version)();
};

// A custom operator as ONNX Runtime takes it: functions that describe it, and those that make, run and end a kernel.
struct OrtCustomOp {
    uint32_t version;
    void* (*create_kernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
    const char* (*get_name)(const OrtCustomOp*);
    const char* (*get_provider)(const OrtCustomOp*);  // null: the CPU
    int (*get_input_type)(const OrtCustomOp*, size_t);
    size_t (*get_input_count)(const OrtCustomOp*);
    int (*get_output_type)(const OrtCustomOp*, size_t);
    size_t (*get_output_count)(const OrtCustomOp*);
    void (*compute)(void*, OrtKernelContext*);
    void (*destroy)(void*);
    int (*get_input_kind)(const OrtCustomOp*, size_t);   // 0: it has to be there
    int (*get_output_kind)(const OrtCustomOp*, size_t);
    int (*get_input_memory)(const OrtCustomOp*, size_t);  // 0: that of the provider
    int (*get_variadic_inputs)(const OrtCustomOp*);
    int (*get_variadic_input_types)(const OrtCustomOp*);
    int (*get_variadic_outputs)(const OrtCustomOp*);
    int (*get_variadic_output_types)(const OrtCustomOp*);
    OrtStatus* (*create_checked)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
    OrtStatus* (*compute_checked)(void*, OrtKernelContext*);
    OrtStatus* (*infer_shape)(const OrtCustomOp*, OrtShapeInferContext*);
    int (*get_first_version)(const OrtCustomOp*);
    int (*get_last_version)(const OrtCustomOp*);
};

namespace stretto {

constexpr uint32_t kOnnxApiVersion = 17;
constexpr int kOnnxFloat = 1;  // the type of tensors of float32
constexpr int kOnnxFail = 1;   // the code of a status

// A function of the table: its number and its type.
template <size_t Number, typename Result, typename... Arguments>
struct OnnxFunction {
    static_assert(Number < sizeof(OrtApi) / sizeof(OrtApi::Function), "outside the table");
    static Result call(const OrtApi* api, Arguments... arguments) {
        return reinterpret_cast<Result (*)(Arguments...)>(api->functions[Number])(arguments...);
    }
};

namespace onnx {

using CreateStatus = OnnxFunction<0, OrtStatus*, int, const char*>;
using CreateDomain = OnnxFunction<26, OrtStatus*, const char*, OrtCustomOpDomain**>;
using AddToDomain = OnnxFunction<27, OrtStatus*, OrtCustomOpDomain*, const OrtCustomOp*>;
using AddDomain = OnnxFunction<28, OrtStatus*, OrtSessionOptions*, OrtCustomOpDomain*>;
using GetData = OnnxFunction<51, OrtStatus*, OrtValue*, void**>;
using GetRank = OnnxFunction<61, OrtStatus*, const OrtTensorTypeAndShapeInfo*, size_t*>;
using GetShape = OnnxFunction<62, OrtStatus*, const OrtTensorTypeAndShapeInfo*, int64_t*, size_t>;
using GetTensorInfo = OnnxFunction<65, OrtStatus*, const OrtValue*, OrtTensorTypeAndShapeInfo**>;
using GetInteger = OnnxFunction<86, OrtStatus*, const OrtKernelInfo*, const char*, int64_t*>;
using GetInput = OnnxFunction<90, OrtStatus*, const OrtKernelContext*, size_t, const OrtValue**>;
using GetOutput = OnnxFunction<91, OrtStatus*, OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**>;
using ReleaseTensorInfo = OnnxFunction<99, void, OrtTensorTypeAndShapeInfo*>;
// Calls a function with 0 … total − 1 on the threads of the session; with 0 batches it decides how.
using ParallelFor =
    OnnxFunction<274, OrtStatus*, const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*>;

}  // namespace onnx

}  // namespace stretto
