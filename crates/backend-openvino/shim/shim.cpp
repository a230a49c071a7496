// What OpenVINO's C interface lacks: attention over paged caches, also in models that are read back, and variables of a
// model within reach.
//
// The functions take the C interface's own objects. Each of those is a structure whose only member is a shared pointer to
// the C++ object; that holds for the version that the headers are of, which is why this library is built against the
// headers of the library that it is loaded beside, and says which version that was.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include <openvino/core/model.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/core/version.hpp>
#include <openvino/op/op.hpp>
#include <openvino/opsets/opset13.hpp>
#include <openvino/runtime/core.hpp>
#include <openvino/runtime/infer_request.hpp>

namespace ov {
namespace op {
// Attention whose keys and values lie in blocks that the caller owns. The wheel exports the class but ships no header, so
// only what is called is declared, in the order of the first virtual functions, and the object gets room to spare.
class OPENVINO_API PagedAttentionExtension : public Op {
public:
    PagedAttentionExtension(const ov::OutputVector& arguments, bool write_kv_cache);
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& arguments) const override;
    void validate_and_infer_types() override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;

private:
    char m_room[512];
};
}  // namespace op
}  // namespace ov

namespace {

template <typename T>
struct Holder {
    std::shared_ptr<T> object;
};

// Copies a message for the caller.
void say(const std::string& what, char* message, size_t length) {
    if (length == 0) {
        return;
    }
    const size_t size = std::min(what.size(), length - 1);
    std::memcpy(message, what.data(), size);
    message[size] = 0;
}

// No exception may leave this library.
template <typename F>
int guarded(char* message, size_t length, F&& work) {
    try {
        work();
        return 0;
    } catch (const std::exception& error) {
        say(error.what(), message, length);
    } catch (...) {
        say("unknown exception", message, length);
    }
    return 1;
}

// Settings of one attention: `paged|key=value|…` in the name of the layer that stands for it.
struct Settings {
    std::unordered_map<std::string, std::string> values;

    explicit Settings(const std::string& name) {
        std::stringstream stream(name);
        std::string part;
        while (std::getline(stream, part, '|')) {
            const auto equals = part.find('=');
            if (equals != std::string::npos) {
                values[part.substr(0, equals)] = part.substr(equals + 1);
            }
        }
    }

    const std::string& text(const std::string& key) const {
        return values.at(key);
    }

    int64_t integer(const std::string& key) const {
        return std::stoll(text(key));
    }

    // Floats as the hexadecimal digits of their bits, separated by colons.
    std::vector<float> floats(const std::string& key) const {
        std::vector<float> all;
        std::stringstream stream(text(key));
        std::string part;
        while (std::getline(stream, part, ':')) {
            const uint32_t bits = static_cast<uint32_t>(std::stoul(part, nullptr, 16));
            float value;
            std::memcpy(&value, &bits, sizeof value);
            all.push_back(value);
        }
        return all;
    }
};

using Parameter = ov::op::v0::Parameter;
using Constant = ov::op::v0::Constant;

// Parameters by name, made when first asked for.
class Parameters {
public:
    explicit Parameters(ov::Model& model) : m_model(model) {}

    ov::Output<ov::Node> get(const std::string& name, ov::element::Type type, ov::PartialShape shape) {
        auto& found = m_found[name];
        if (!found) {
            found = std::make_shared<Parameter>(type, shape);
            found->set_friendly_name(name);
            found->get_output_tensor(0).set_names({name});
            m_model.add_parameters({found});
        }
        return found->output(0);
    }

private:
    ov::Model& m_model;
    std::unordered_map<std::string, std::shared_ptr<Parameter>> m_found;
};

template <typename T>
ov::Output<ov::Node> constant(ov::element::Type type, ov::Shape shape, const std::vector<T>& values) {
    return Constant::create(type, shape, values);
}

// Where plugins look for the extents of the caches.
void set_extents(ov::Node& attention, int64_t kv_heads, int64_t key_dim, int64_t value_dim) {
    auto& info = attention.get_rt_info();
    info["num_k_heads"] = info["num_v_heads"] = static_cast<size_t>(kv_heads);
    info["k_head_size"] = static_cast<size_t>(key_dim);
    info["v_head_size"] = static_cast<size_t>(value_dim);
}

// Reads paged attention of an exported model, which has no such extents: they follow from its inputs.
class AttentionReader : public ov::BaseOpExtension {
public:
    const ov::DiscreteTypeInfo& get_type_info() const override {
        static const ov::DiscreteTypeInfo info{"PagedAttentionExtension", "extension"};
        return info;
    }

    std::vector<ov::Extension::Ptr> get_attached_extensions() const override {
        return {};
    }

    ov::OutputVector create(const ov::OutputVector& arguments, ov::AttributeVisitor&) const override {
        auto attention = std::make_shared<ov::op::PagedAttentionExtension>(arguments, true);
        const auto width = [&](size_t argument) { return arguments.at(argument).get_partial_shape()[1].get_length(); };
        const int64_t kv_heads = width(3);
        OPENVINO_ASSERT(kv_heads > 0, "caches without heads");
        set_extents(*attention, kv_heads, width(1) / kv_heads, width(2) / kv_heads);
        return attention->outputs();
    }
};

void replace_attention(const std::shared_ptr<ov::Node>& node, Parameters& parameters) {
    const Settings settings(node->get_friendly_name());
    const auto parts = node->input_value(0).get_node_shared_ptr();
    const auto state = settings.text("state");
    const auto group = settings.text("group");
    const auto i32 = ov::element::i32;
    const auto f32 = ov::element::f32;
    const auto list = ov::PartialShape{-1};
    const auto slopes = settings.floats("alibi");
    const auto sinks = settings.floats("sinks");
    const auto sink_shape = sinks.empty() ? ov::Shape{0, 0, 0, 0} : ov::Shape{1, sinks.size(), 1, 1};
    // The C interface has no tensors without axes.
    const auto longest = std::make_shared<ov::op::v0::Squeeze>(
        parameters.get("max_context_len." + group, i32, ov::PartialShape{1}), constant<int64_t>(ov::element::i64, {1}, {0}));
    const auto none = [&] { return constant<int32_t>(i32, {0}, {}); };
    const auto zero = [&] { return constant<int32_t>(i32, {}, {0}); };
    ov::OutputVector arguments{
        parts->input_value(0),
        parts->input_value(1),
        parts->input_value(2),
        parameters.get("key_cache." + state, ov::element::dynamic, ov::PartialShape::dynamic(4)),
        parameters.get("value_cache." + state, ov::element::dynamic, ov::PartialShape::dynamic(4)),
        parameters.get("past_lens." + group, i32, list),
        parameters.get("subsequence_begins", i32, list),
        parameters.get("block_indices." + group, i32, list),
        parameters.get("block_indices_begins." + group, i32, list),
        constant<float>(f32, {}, settings.floats("scale")),
        constant<int32_t>(i32, {}, {static_cast<int32_t>(settings.integer("window"))}),
        constant<float>(f32, {slopes.size()}, slopes),
        longest,
        none(),                                     // score_aggregation_window
        none(),                                     // rotated_block_indices
        none(),                                     // rotation_deltas
        constant<float>(f32, {0}, {}),              // rotation_trig_lut
        constant<float>(f32, {0}, {}),              // xattention_threshold
        zero(),                                     // xattention_block_size
        zero(),                                     // xattention_stride
        constant<float>(f32, sink_shape, sinks),
        zero(),                                     // adaptive_rkv_start_size
        none(),                                     // adaptive_rkv_evictable_sizes
        none(),                                     // adaptive_rkv_diversity_block_set_indices
        none(),                                     // adaptive_rkv_diversity_block_set_indices_begins
        none(),                                     // token_type_ids
        constant<uint8_t>(ov::element::u8, {0}, {}),  // qq_bias
        none(),                                     // qq_bias_begins
    };
    auto attention = std::make_shared<ov::op::PagedAttentionExtension>(arguments, true);
    attention->set_friendly_name("attention." + state);
    set_extents(*attention, settings.integer("kv_heads"), settings.integer("key_dim"), settings.integer("value_dim"));
    for (auto& target : node->output(0).get_target_inputs()) {
        target.replace_source_output(attention->output(0));
    }
}

// Rows `columns` of a cache `[1, heads, rows, width]`, in this order.
ov::Tensor kept_columns(const ov::Tensor& all, const uint64_t* columns, size_t count) {
    const auto shape = all.get_shape();
    OPENVINO_ASSERT(shape.size() == 4 && shape[0] == 1, "a variable that is no cache");
    ov::Tensor kept(all.get_element_type(), {1, shape[1], count, shape[3]});
    const size_t row = shape[3] * all.get_element_type().size();
    const auto* from = static_cast<const char*>(all.data());
    auto* to = static_cast<char*>(kept.data());
    for (size_t head = 0; head < shape[1]; ++head) {
        for (size_t index = 0; index < count; ++index) {
            OPENVINO_ASSERT(columns[index] < shape[2], "a row that the variable lacks");
            std::memcpy(to, from + (head * shape[2] + columns[index]) * row, row);
            to += row;
        }
    }
    return kept;
}

}  // namespace

extern "C" {

// Version of the library whose headers this was built against.
const char* puna_openvino_version() {
    static const std::string version = std::to_string(OPENVINO_VERSION_MAJOR) + "." +
                                       std::to_string(OPENVINO_VERSION_MINOR) + "." +
                                       std::to_string(OPENVINO_VERSION_PATCH);
    return version.c_str();
}

// Puts paged attention in the place of every layer whose name begins with `paged|`. `model`: an `ov_model_t`.
int puna_page_attention(void* model, char* message, size_t length) {
    return guarded(message, length, [&] {
        auto& object = *static_cast<Holder<ov::Model>*>(model)->object;
        Parameters parameters(object);
        for (const auto& node : object.get_ordered_ops()) {
            if (node->get_friendly_name().rfind("paged|", 0) == 0) {
                replace_attention(node, parameters);
            }
        }
        object.validate_nodes_and_infer_types();
    });
}

// Has models that this root object imports read with their paged attention. `core`: an `ov_core_t`.
int puna_read_attention(void* core, char* message, size_t length) {
    return guarded(message, length, [&] {
        static_cast<Holder<ov::Core>*>(core)->object->add_extension(std::make_shared<AttentionReader>());
    });
}

// Leaves of every cache in a request's variables only the rows `columns`, in this order. `request`: an `ov_infer_request_t`.
int puna_keep_columns(void* request, const uint64_t* columns, size_t count, char* message, size_t length) {
    return guarded(message, length, [&] {
        for (auto& state : static_cast<Holder<ov::InferRequest>*>(request)->object->query_state()) {
            const auto name = state.get_name();
            if (name.rfind("keys.", 0) == 0 || name.rfind("values.", 0) == 0) {
                state.set_state(kept_columns(state.get_state(), columns, count));
            }
        }
    });
}

}  // extern "C"
