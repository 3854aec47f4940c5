// Runs one matrix product, perceptron or attention with oneDNN's primitives and fused post-ops.
// Weights are reordered once. Data is random, and results are not compared: the time is a limit for
// us to reach.
//
//     onednn_peer KIND DTYPE SIZE...     matmul M K N | mlp batch in ... out
//                                        | mha batch sequence hidden heads; f32, bf16 or int8
//
// It answers {"ready": SECONDS}, then, for every line with a number of seconds,
// {"times": [SECONDS, ...]}; {"error": REASON} ends it. "onednn_peer version" prints the version.
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

using namespace dnnl;
using Dims = memory::dims;
using Scales = std::vector<std::vector<float>>;
using Tag = memory::format_tag;
using Type = memory::data_type;

namespace {

struct Step {
    primitive operation;
    std::unordered_map<int, memory> arguments;
};
using Program = std::vector<Step>;

const engine &cpu() {
    static const engine only(engine::kind::cpu, 0);
    return only;
}

stream &queue() {
    static stream only(cpu());
    return only;
}

double now() {
    auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since_start).count();
}

struct Types {
    Type activation, weight;

    explicit Types(const std::string &dtype)
        : activation(dtype == "f32" ? Type::f32 : dtype == "bf16" ? Type::bf16 : Type::u8),
          weight(activation == Type::u8 ? Type::s8 : activation) {}

    bool bytes() const { return activation == Type::u8; }
};

memory zeros(const memory::desc &desc) {
    memory result(desc, cpu());
    memset(result.get_data_handle(), 0, desc.get_size());
    return result;
}

memory floats(const std::vector<float> &values) {
    memory result(memory::desc({(memory::dim)values.size()}, Type::f32, Tag::a), cpu());
    memcpy(result.get_data_handle(), values.data(), values.size() * sizeof(float));
    return result;
}

// Small numbers: sums neither overflow nor become denormal.
memory random_memory(const memory::desc &desc) {
    static std::mt19937 generator(1);
    memory result(desc, cpu());
    Type type = desc.get_data_type();
    size_t width = memory::data_type_size(type), count = desc.get_size() / width;
    char *out = static_cast<char *>(result.get_data_handle());
    for (size_t i = 0; i < count; i++, out += width) {
        int whole = int(generator() & 127);
        float value = (whole - 64) / 640.f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint16_t half = uint16_t(bits >> 16);
        if (type == Type::f32) memcpy(out, &value, width);
        if (type == Type::bf16) memcpy(out, &half, width);
        if (type == Type::s8) *out = char(whole - 64);
        if (type == Type::u8) *out = char(whole);
    }
    return result;
}

// oneDNN chooses the layout of weights that are reordered once.
memory packed(memory weights, const memory::desc &layout) {
    memory result = zeros(layout);
    reorder(weights, result).execute(queue(), weights, result);
    queue().wait();
    return result;
}

struct Product {
    memory source, weights, output;
    bool constant;    // the weights
    post_ops fused;
    Scales scales;    // of the source, the weights (one, or one for each column) and the output

    Step step() const {
        const int slots[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
        primitive_attr attributes;
        attributes.set_post_ops(fused);
        for (size_t i = 0; i < scales.size(); i++)
            attributes.set_scales_mask(slots[i], scales[i].size() > 1 ? 2 : 0);
        memory::desc given = weights.get_desc();
        memory::desc layout = given;
        if (constant) layout = memory::desc(given.get_dims(), given.get_data_type(), Tag::any);
        matmul::primitive_desc chosen(
            cpu(), source.get_desc(), layout, output.get_desc(), attributes);
        memory right = constant ? packed(weights, chosen.weights_desc()) : weights;
        Step made{matmul(chosen),
                  {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, output}}};
        for (size_t i = 0; i < scales.size(); i++)
            made.arguments[DNNL_ARG_ATTR_SCALES | slots[i]] = floats(scales[i]);
        return made;
    }
};

// Each layer is a product, with ReLU in a perceptron.
Program linear(const Types &types, const Dims &sizes, bool relu) {
    memory value = random_memory(memory::desc({sizes[0], sizes[1]}, types.activation, Tag::ab));
    post_ops fused;
    if (relu) fused.append_eltwise(algorithm::eltwise_relu, 0, 0);
    Program program;
    for (size_t layer = 1; layer + 1 < sizes.size(); layer++) {
        memory::dim inner = sizes[layer], columns = sizes[layer + 1];
        Scales scales;
        if (types.bytes()) scales = {{0.01f}, std::vector<float>(columns, 0.01f), {0.05f}};
        memory weights = random_memory(memory::desc({inner, columns}, types.weight, Tag::ab));
        memory output = zeros(memory::desc({sizes[0], columns}, types.activation, Tag::ab));
        program.push_back(Product{value, weights, output, true, fused, scales}.step());
        value = output;
    }
    return program;
}

Step softmax(const Types &types, const memory &scores, const memory &weights) {
    primitive_attr attributes;
    if (types.bytes()) attributes.set_scales_mask(DNNL_ARG_DST, 0);
    softmax_forward::primitive_desc chosen(
        cpu(), prop_kind::forward_inference, algorithm::softmax_accurate, scores.get_desc(),
        weights.get_desc(), 3, attributes);
    Step step{softmax_forward(chosen), {{DNNL_ARG_SRC, scores}, {DNNL_ARG_DST, weights}}};
    if (types.bytes()) step.arguments[DNNL_ARG_ATTR_SCALES | DNNL_ARG_DST] = floats({1 / 255.f});
    return step;
}

// Attention of [batch, sequence, hidden]; heads are transposed by strides, without copies.
Program attention(const Types &types, const Dims &sizes) {
    memory::dim batch = sizes[0], sequence = sizes[1], hidden = sizes[2], heads = sizes[3];
    memory::dim head = hidden / heads;
    Dims plain{batch, heads, sequence, head}, flipped{batch, heads, head, sequence};
    Dims square{batch, heads, sequence, sequence};
    Dims strides{sequence * hidden, head, hidden, 1};
    Dims flipped_strides{sequence * hidden, head, 1, hidden};
    memory query = random_memory(memory::desc(plain, types.activation, strides));
    memory key = random_memory(memory::desc(flipped, types.weight, flipped_strides));
    memory value = random_memory(memory::desc(plain, types.weight, strides));
    memory output = zeros(memory::desc(plain, types.activation, strides));
    Type of_scores = types.activation == Type::bf16 ? Type::bf16 : Type::f32;
    memory scores = zeros(memory::desc(square, of_scores, Tag::abcd));
    memory weights = zeros(memory::desc(square, types.activation, Tag::abcd));
    memory factor = zeros(memory::desc({1, 1, 1, 1}, Type::f32, Tag::abcd));
    memory mask = zeros(memory::desc({batch, 1, 1, sequence}, Type::f32, Tag::abcd));
    *static_cast<float *>(factor.get_data_handle()) = 1 / std::sqrt(float(head));
    post_ops scaled_and_masked;
    scaled_and_masked.append_binary(algorithm::binary_mul, factor.get_desc());
    scaled_and_masked.append_binary(algorithm::binary_add, mask.get_desc());
    Scales first, second;
    if (types.bytes()) first = {{0.01f}, {0.01f}}, second = {{1 / 255.f}, {0.01f}, {0.05f}};
    Step product = Product{query, key, scores, false, scaled_and_masked, first}.step();
    product.arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = factor;
    product.arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1] = mask;
    return {product, softmax(types, scores, weights),
            Product{weights, value, output, false, post_ops(), second}.step()};
}

void execute(Program &program) {
    for (Step &step : program) step.operation.execute(queue(), step.arguments);
    queue().wait();
}

std::string times(Program &program, double seconds) {
    std::ostringstream text;
    double start = now(), end = start + seconds;
    do {
        execute(program);
        double stop = now();
        text << (text.tellp() ? ", " : "") << stop - start;
        start = stop;
    } while (start < end);
    return text.str();
}

Program prepared(const std::string &kind, const Types &types, const Dims &sizes) {
    Program program = kind == "mha" ? attention(types, sizes) : linear(types, sizes, kind == "mlp");
    for (int warm_up = 0; warm_up < 3; warm_up++) execute(program);
    return program;
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 5) {
        const dnnl_version_t *version = dnnl_version();
        std::cout << version->major << '.' << version->minor << '.' << version->patch << std::endl;
        return count == 2 ? 0 : 2;
    }
    try {
        double start = now();
        Dims sizes;
        for (int i = 3; i < count; i++) sizes.push_back(std::stol(arguments[i]));
        Program program = prepared(arguments[1], Types(arguments[2]), sizes);
        std::cout << "{\"ready\": " << now() - start << "}" << std::endl;
        for (double seconds; std::cin >> seconds;)
            std::cout << "{\"times\": [" << times(program, seconds) << "]}" << std::endl;
    } catch (const std::exception &failure) {
        std::cout << "{\"error\": \"" << failure.what() << "\"}" << std::endl;
        return 1;
    }
}
