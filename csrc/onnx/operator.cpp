// ai.stretto::Product, an operator of ONNX Runtime: y = W x, for a registered matrix W.
//
//     x       float32[…, columns]
//     y       float32[…, rows]
//     matrix  its number (attribute)
//
// ONNX Runtime opens this library and calls RegisterCustomOps. Products run on the session's own threads.

#include <exception>
#include <map>
#include <mutex>

#include "onnx/api.h"
#include "onnx/product.h"

namespace stretto {

namespace {

constexpr char kDomain[] = "ai.stretto";
constexpr size_t kMostAxes = 8;

OrtStatus* failure(const OrtApi* api, const char* message) { return onnx::CreateStatus::call(api, kOnnxFail, message); }

// The product of one node.
struct Node {
    const OrtApi* api;
    std::shared_ptr<const OnnxMatrix> matrix;
};

struct Shape {
    size_t axes = 0;
    int64_t sizes[kMostAxes];

    OrtStatus* read(const OrtApi* api, const OrtValue* value) {
        OrtTensorTypeAndShapeInfo* info = nullptr;
        if (OrtStatus* failed = onnx::GetTensorInfo::call(api, value, &info)) return failed;
        OrtStatus* failed = onnx::GetRank::call(api, info, &axes);
        if (!failed && (axes < 1 || axes > kMostAxes)) failed = failure(api, "x must have 1 to 8 axes");
        if (!failed) failed = onnx::GetShape::call(api, info, sizes, axes);
        onnx::ReleaseTensorInfo::call(api, info);
        return failed;
    }
    // How many rows of the last axis there are.
    size_t rows() const {
        size_t n = 1;
        for (size_t i = 0; i + 1 < axes; ++i) n *= static_cast<size_t>(sizes[i]);
        return n;
    }
};

// Runs all parts on the session's threads; a single one here.
OrtStatus* run_parts(const OrtApi* api, const OrtKernelContext* context, size_t parts, void (*run)(void*, size_t), void* data) {
    if (parts > 1) return onnx::ParallelFor::call(api, context, run, parts, 0, data);
    run(data, 0);
    return nullptr;
}

OrtStatus* multiply(const Node& node, OrtKernelContext* context) {
    const OrtApi* api = node.api;
    const OrtValue* input = nullptr;
    OrtValue* output = nullptr;
    Shape shape;
    if (OrtStatus* failed = onnx::GetInput::call(api, context, 0, &input)) return failed;
    if (OrtStatus* failed = shape.read(api, input)) return failed;
    int64_t& width = shape.sizes[shape.axes - 1];
    if (width != static_cast<int64_t>(node.matrix->columns())) return failure(api, "the rows of x do not fit the matrix");
    width = static_cast<int64_t>(node.matrix->rows());
    if (OrtStatus* failed = onnx::GetOutput::call(api, context, 0, shape.sizes, shape.axes, &output)) return failed;
    if (!shape.rows()) return nullptr;
    void *x = nullptr, *y = nullptr;
    if (OrtStatus* failed = onnx::GetData::call(api, const_cast<OrtValue*>(input), &x)) return failed;
    if (OrtStatus* failed = onnx::GetData::call(api, output, &y)) return failed;

    static thread_local Buffer scratch;
    OnnxProduct product(*node.matrix, static_cast<const float*>(x), shape.rows(), static_cast<float*>(y), scratch);
    auto quantize = [](void* data, size_t part) { static_cast<const OnnxProduct*>(data)->quantize(part); };
    auto multiply = [](void* data, size_t part) { static_cast<const OnnxProduct*>(data)->multiply(part); };
    if (OrtStatus* failed = run_parts(api, context, product.quantize_parts(), quantize, &product)) return failed;
    return run_parts(api, context, product.multiply_parts(), multiply, &product);
}

// No exception may pass through ONNX Runtime.
OrtStatus* compute(void* kernel, OrtKernelContext* context) {
    const Node& node = *static_cast<const Node*>(kernel);
    try {
        return multiply(node, context);
    } catch (const std::exception& error) {
        return failure(node.api, error.what());
    }
}

OrtStatus* create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
    int64_t number = 0;
    if (OrtStatus* failed = onnx::GetInteger::call(api, info, "matrix", &number)) return failed;
    try {
        auto matrix = find_onnx_matrix(number);
        if (!matrix) return failure(api, "there is no matrix of that number");
        *kernel = new Node{api, std::move(matrix)};
        return nullptr;
    } catch (const std::exception& error) {
        return failure(api, error.what());
    }
}

OrtCustomOp product_operator() {
    auto one = [](const OrtCustomOp*) { return 1; };
    auto one_value = [](const OrtCustomOp*) { return size_t{1}; };
    auto zero = [](const OrtCustomOp*, size_t) { return 0; };
    auto floats = [](const OrtCustomOp*, size_t) { return kOnnxFloat; };
    OrtCustomOp op{};
    op.version = kOnnxApiVersion;
    op.get_name = [](const OrtCustomOp*) { return "Product"; };
    op.get_provider = [](const OrtCustomOp*) -> const char* { return nullptr; };
    op.get_input_count = op.get_output_count = one_value;
    op.get_input_type = op.get_output_type = floats;
    op.get_input_kind = op.get_output_kind = op.get_input_memory = zero;
    op.get_variadic_inputs = op.get_variadic_input_types = one;
    op.get_variadic_outputs = op.get_variadic_output_types = one;
    op.get_first_version = op.get_last_version = one;
    op.create_checked = create;
    op.compute_checked = compute;
    op.destroy = [](void* kernel) { delete static_cast<Node*>(kernel); };
    return op;
}

// The domain with the operator, one for each copy of ONNX Runtime in the process. Sessions refer to it as long as they live.
OrtStatus* find_domain(const OrtApi* api, OrtCustomOpDomain** domain) {
    static const OrtCustomOp op = product_operator();
    static std::mutex mutex;
    static auto* domains = new std::map<const OrtApi*, OrtCustomOpDomain*>;
    const std::lock_guard<std::mutex> lock(mutex);
    OrtCustomOpDomain*& known = (*domains)[api];
    if (!known) {
        OrtCustomOpDomain* made = nullptr;
        if (OrtStatus* failed = onnx::CreateDomain::call(api, kDomain, &made)) return failed;
        if (OrtStatus* failed = onnx::AddToDomain::call(api, made, &op)) return failed;
        known = made;
    }
    *domain = known;
    return nullptr;
}

}  // namespace

}  // namespace stretto

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
    using namespace stretto;
    const OrtApi* api = base->get_api(kOnnxApiVersion);
    if (!api) {  // the first version can at least say so; without it the session finds no operator
        const OrtApi* first = base->get_api(1);
        return first ? failure(first, "ONNX Runtime is older than 1.17") : nullptr;
    }
    try {
        OrtCustomOpDomain* domain = nullptr;
        if (OrtStatus* failed = find_domain(api, &domain)) return failed;
        return onnx::AddDomain::call(api, options, domain);
    } catch (const std::exception& error) {
        return failure(api, error.what());
    }
}
