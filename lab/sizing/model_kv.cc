// SPDX-License-Identifier: Apache-2.0
#include "lab/sizing/model_kv.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace kvcove::lab {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostOfAField = 1U << 16;
constexpr std::size_t kMostConfigBytes = 1U << 22;
constexpr std::uint64_t kMostOfAWindow = 1U << 30;
constexpr std::uint64_t kScaledElements = 128;  // of a latent or an index that one scale is for
constexpr std::uint64_t kScaleBytes = 4;
constexpr const char* kAskTheEngine =
    "'python -m kvcove.vllm explain MODEL' says the bytes a token of an engine of vLLM";

std::unexpected<Error> Refuse(std::string detail) {
  return Fail(Code::kInvalid, std::move(detail));
}

bool Has(const json& config, const char* field) {
  const auto at = config.find(field);
  return at != config.end() && !at->is_null();
}

// `hint`: what to do where the field is missing.
Result<std::uint64_t> Count(const json& config, const char* field, std::string_view hint = {},
                            std::uint64_t most = kMostOfAField) {
  if (!Has(config, field)) {
    return Refuse(
        fmt::format("the field '{}' is missing{}{}", field, hint.empty() ? "" : "; ", hint));
  }
  const json& value = config[field];
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() == 0 ||
      value.get<std::uint64_t>() > most) {
    return Refuse(fmt::format("the field '{}' is {}, and must be a number from 1 to {}", field,
                              value.dump(), most));
  }
  return value.get<std::uint64_t>();
}

// ---- shapes of caches that are not known here

// Fields of layers whose state is not of tokens, or whose KV has several sizes.
constexpr const char* kOtherShapes[] = {"attention_layers_idx",
                                        "attn_layer_indices",
                                        "attn_type_list",
                                        "compress_ratio",
                                        "compress_ratios",
                                        "cross_attention_layers",
                                        "full_attention_interval",
                                        "global_head_dim",
                                        "hybrid_override_pattern",
                                        "layers_block_type",
                                        "linear_attn_config",
                                        "linear_conv_kernel_dim",
                                        "mamba_d_conv",
                                        "mamba_d_state",
                                        "num_global_key_value_heads",
                                        "num_kv_shared_layers",
                                        "ssm_cfg",
                                        "ssm_state_size",
                                        "swa_head_dim",
                                        "swa_num_key_value_heads",
                                        "use_cla"};

bool IsUnset(const json& value) {
  return value.is_null() || (value.is_structured() && value.empty()) ||
         (value.is_number() && value.get<double>() == 0) || value == false;
}

// MiniMax-M2 has attention in each layer, and says so in the list of MiniMax-01: 1 for each.
bool IsAllAttention(std::string_view field, const json& value) {
  return field == "attn_type_list" && value.is_array() &&
         std::ranges::all_of(value, [](const json& type) { return type == 1; });
}

Status CheckShape(const json& config) {
  for (const char* field : kOtherShapes) {
    const auto at = config.find(field);
    if (at == config.end() || IsUnset(*at) || IsAllAttention(field, *at)) continue;
    return Refuse(fmt::format(
        "the field '{}' is of a model whose layers keep other things than one KV of each token; {}",
        field, kAskTheEngine));
  }
  if (const auto at = config.find("is_encoder_decoder"); at != config.end() && !IsUnset(*at)) {
    return Refuse("'is_encoder_decoder': the pool keeps KV of decoders alone");
  }
  return {};
}

// ---- the type of what is kept

Result<std::string> DtypeOf(const json& model, const json& outer, std::string_view asked) {
  if (asked != "auto") return std::string(asked);
  for (const json* config : {&model, &outer}) {
    for (const char* field : {"dtype", "torch_dtype"}) {
      if (!Has(*config, field)) continue;
      const json& value = (*config)[field];
      std::string name = value.is_string() ? value.get<std::string>() : value.dump();
      if (name == "float32") return std::string("bfloat16");
      if (name == "bfloat16" || name == "float16") return name;
      return Refuse(fmt::format("the field '{}' is '{}'; give the type of the KV with --kv-dtype",
                                field, name));
    }
  }
  return Refuse("the field 'torch_dtype' (or 'dtype') is missing; give the type with --kv-dtype");
}

std::uint64_t ElementBytes(std::string_view dtype) {
  if (dtype == "fp8") return 1;
  return dtype == "float32" ? 4 : 2;
}

// ---- a layer

struct LayerKv {
  std::uint32_t heads = 1;
  std::uint64_t token_bytes = 0;
  std::string text;
};

// One latent for all heads (MLA), which every rank has. With an index (DeepSeek-V3.2) also a key of
// bytes with scales; its latent of fp8 has scales, too, and a rotary part of 16 bits.
Result<LayerKv> LatentOf(const json& config, std::string_view dtype) {
  KVCOVE_ASSIGN(const std::uint64_t rank, Count(config, "kv_lora_rank"));
  KVCOVE_ASSIGN(const std::uint64_t rotary,
                Count(config, "qk_rope_head_dim", "a model with 'kv_lora_rank' has it"));
  LayerKv layer{.token_bytes = (rank + rotary) * ElementBytes(dtype),
                .text = fmt::format("one latent of {} + {}", rank, rotary)};
  if (!Has(config, "index_head_dim")) return layer;
  KVCOVE_ASSIGN(const std::uint64_t index, Count(config, "index_head_dim"));
  if (dtype == "fp8")
    layer.token_bytes = rank + (rank / kScaledElements * kScaleBytes) + 2 * rotary;
  layer.token_bytes += index + (index / kScaledElements * kScaleBytes);
  layer.text += fmt::format(" and an index key of {} bytes", index);
  return layer;
}

// Types whose classes have a 'head_dim' of their own, whatever 'hidden_size' is: Gemma 3 12B has
// heads of 256, and 3840 / 16 in its config.
constexpr std::string_view kOwnHeadDim[] = {
    "cwm",        "ernie4_5", "gemma",         "gemma2",  "gemma3",      "gemma3_text",
    "glm",        "glm4",     "gpt_oss",       "helium",  "llama4_text", "minimax_m2",
    "ministral3", "qwen3",    "qwen3_vl_text", "seed_oss"};

bool HasOwnHeadDim(const json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() &&
         std::ranges::find(kOwnHeadDim, type->get_ref<const std::string&>()) !=
             std::end(kOwnHeadDim);
}

Result<LayerKv> HeadsOf(const json& config, std::string_view dtype) {
  constexpr std::string_view kHeads =
      "its default is the model class's, so add it: equal to 'num_attention_heads' where each head "
      "has KV of its own";
  KVCOVE_ASSIGN(const std::uint64_t heads, Count(config, "num_key_value_heads", kHeads));
  std::uint64_t head = 0;
  if (Has(config, "head_dim")) {
    KVCOVE_ASSIGN(head, Count(config, "head_dim"));
  } else if (HasOwnHeadDim(config)) {
    return Refuse(fmt::format(
        "the field 'head_dim' is missing; its default is the model class's, so add it: it is not "
        "'hidden_size' over 'num_attention_heads' in models of the type {}",
        config["model_type"].dump()));
  } else {
    constexpr std::string_view kHead = "without it 'head_dim' must be there";
    KVCOVE_ASSIGN(const std::uint64_t hidden, Count(config, "hidden_size", kHead));
    KVCOVE_ASSIGN(const std::uint64_t queries, Count(config, "num_attention_heads", kHead));
    if (hidden % queries != 0) {
      return Refuse(
          fmt::format("'hidden_size' {} is no multiple of 'num_attention_heads' {}, so 'head_dim' "
                      "must be there",
                      hidden, queries));
    }
    head = hidden / queries;
  }
  if (Has(config, "v_head_dim")) {
    KVCOVE_ASSIGN(const std::uint64_t values, Count(config, "v_head_dim"));
    if (values != head) {
      return Refuse(
          fmt::format("'v_head_dim' {} differs from the keys' {}: engines lay such KV out "
                      "in several ways; {}",
                      values, head, kAskTheEngine));
    }
  }
  return LayerKv{.heads = static_cast<std::uint32_t>(heads),
                 .token_bytes = 2 * heads * head * ElementBytes(dtype),
                 .text = fmt::format("{} KV heads of {}", heads, head)};
}

// ---- windows

struct Windows {
  std::uint64_t tokens = 0;  // 0: none
  std::uint64_t layers = 0;  // that have one
};

// Of how many layers one has full attention, as the models' classes have it where the config does
// not say it.
struct Pattern {
  std::string_view type;
  std::uint64_t layers;  // 0: every layer has the window
};
constexpr Pattern kPatterns[] = {{"cohere2", 4},     {"gemma2", 2},      {"gemma3", 6},
                                 {"gemma3_text", 6}, {"llama4_text", 4}, {"mistral", 0},
                                 {"mixtral", 0},     {"phi3", 0},        {"starcoder2", 0}};

Result<std::uint64_t> LayersOfTypes(const json& types, std::uint64_t layers) {
  if (!types.is_array() || types.size() != layers) {
    return Refuse(fmt::format(
        "'layer_types' must be a list with one name for each of the {} layers", layers));
  }
  std::uint64_t windows = 0;
  for (const json& type : types) {
    if (type == "full_attention") continue;
    if (type != "sliding_attention" && type != "chunked_attention") {
      return Refuse(fmt::format("'layer_types' has {}, a layer without KV of each token; {}",
                                type.dump(), kAskTheEngine));
    }
    ++windows;
  }
  return windows;
}

// `config` says "use_sliding_window": false where a window is not used (Qwen).
Result<Windows> WindowsOf(const json& config, std::uint64_t layers) {
  const char* const field = Has(config, "sliding_window")         ? "sliding_window"
                            : Has(config, "attention_chunk_size") ? "attention_chunk_size"
                                                                  : nullptr;
  if (Has(config, "layer_types")) {
    KVCOVE_ASSIGN(const std::uint64_t windows, LayersOfTypes(config["layer_types"], layers));
    if (windows == 0) return Windows{};
    if (field == nullptr) {
      return Refuse(
          "'layer_types' has layers with a window; the field 'sliding_window' is missing");
    }
    KVCOVE_ASSIGN(const std::uint64_t tokens, Count(config, field, {}, kMostOfAWindow));
    return Windows{.tokens = tokens, .layers = windows};
  }
  if (field == nullptr ||
      (Has(config, "use_sliding_window") && config["use_sliding_window"] == false)) {
    return Windows{};
  }
  KVCOVE_ASSIGN(const std::uint64_t tokens, Count(config, field, {}, kMostOfAWindow));
  if (Has(config, "max_window_layers")) {  // Qwen: the layers before this one have full attention
    if (!config["max_window_layers"].is_number_unsigned()) {
      return Refuse("the field 'max_window_layers' must be a number of at least 0");
    }
    const auto first = config["max_window_layers"].get<std::uint64_t>();
    return Windows{.tokens = tokens, .layers = layers - std::min(first, layers)};
  }
  std::uint64_t period = 0;
  if (Has(config, "sliding_window_pattern")) {
    KVCOVE_ASSIGN(period, Count(config, "sliding_window_pattern"));
  } else {
    const std::string type = Has(config, "model_type") ? config["model_type"].dump() : "null";
    const auto at = std::ranges::find_if(kPatterns, [&](const Pattern& pattern) {
      return type == fmt::format("\"{}\"", pattern.type);
    });
    if (at == std::end(kPatterns)) {
      return Refuse(
          fmt::format("'{}' is set, and nothing says which layers of a model of the type "
                      "{} have the window: add 'layer_types', with \"full_attention\" or "
                      "\"sliding_attention\" for each layer",
                      field, type));
    }
    period = at->layers;
  }
  return Windows{.tokens = tokens, .layers = period == 0 ? layers : layers - layers / period};
}

// ---- groups

// As vLLM cuts a model with two kinds of layers into groups of equally many: as many as the rarer
// kind has, or, where the other has less than half as many more, as many as that one.
std::uint64_t GroupLayers(std::uint64_t one, std::uint64_t other) {
  const std::uint64_t least = std::min(one, other);
  const std::uint64_t most = std::max(one, other);
  if (least == 0) return most;
  return 2 * most < 3 * least ? most : least;
}

void AddGroups(ModelKv& model, const KvGroup& of, std::uint64_t layers, std::uint64_t each,
               std::uint64_t layer_bytes) {
  if (layers == 0) return;
  const std::uint64_t groups = (layers + each - 1) / each;
  for (std::uint64_t i = 0; i < groups; ++i) {
    KvGroup group = of;
    group.layers = static_cast<std::uint32_t>(layers / groups + (i < layers % groups ? 1 : 0));
    group.token_bytes = group.layers * layer_bytes;
    model.groups.push_back(group);
  }
}

// A model that also sees or hears has its decoder's fields in an object of their own.
const json* DecoderOf(const json& config) {
  for (const char* field : {"text_config", "language_config", "llm_config"}) {
    const auto at = config.find(field);
    if (at != config.end() && at->is_object()) return &*at;
  }
  return &config;
}

}  // namespace

std::uint32_t ModelKv::layers() const {
  std::uint32_t sum = 0;
  for (const KvGroup& group : groups) sum += group.layers;
  return sum;
}

std::uint64_t ModelKv::token_bytes() const {
  std::uint64_t sum = 0;
  for (const KvGroup& group : groups) sum += group.token_bytes;
  return sum;
}

std::uint64_t ModelKv::HitBytes(std::uint64_t tokens) const {
  std::uint64_t sum = 0;
  for (const KvGroup& group : groups) {
    const bool window = group.kind == connector::GroupKind::kWindow;
    sum += group.token_bytes *
           (window ? std::min<std::uint64_t>(tokens, group.window_tokens) : tokens);
  }
  return sum;
}

std::vector<std::string> KvDtypes() { return {"auto", "bfloat16", "float16", "float32", "fp8"}; }

Result<ModelKv> ParseModelKv(std::string_view config, std::string_view dtype) {
  const json outer = json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!outer.is_object()) {
    return Refuse("not a JSON object; give the config.json of a model as Hugging Face has it");
  }
  const json& decoder = *DecoderOf(outer);
  KVCOVE_TRY(CheckShape(decoder));
  KVCOVE_ASSIGN(const std::uint64_t layers, Count(decoder, "num_hidden_layers"));
  ModelKv model;
  KVCOVE_ASSIGN(model.dtype, DtypeOf(decoder, outer, dtype));
  if (Has(decoder, "model_type") && decoder["model_type"].is_string()) {
    model.type = decoder["model_type"].get<std::string>();
  }
  KVCOVE_ASSIGN(const LayerKv layer, Has(decoder, "kv_lora_rank") ? LatentOf(decoder, model.dtype)
                                                                  : HeadsOf(decoder, model.dtype));
  KVCOVE_ASSIGN(const Windows windows, WindowsOf(decoder, layers));
  model.layer_text = layer.text;
  const std::uint64_t full = layers - windows.layers;
  const std::uint64_t each = GroupLayers(full, windows.layers);
  AddGroups(model, {.heads = layer.heads}, full, each, layer.token_bytes);
  AddGroups(model,
            {.kind = connector::GroupKind::kWindow,
             .window_tokens = static_cast<std::uint32_t>(windows.tokens),
             .heads = layer.heads},
            windows.layers, each, layer.token_bytes);
  return model;
}

Result<ModelKv> ReadModelKv(const std::string& path, std::string_view dtype) {
  std::ifstream file(path);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error)) {
    return Refuse(fmt::format("cannot read '{}': {}; give a model's config.json", path,
                              file ? "it is a directory" : std::strerror(errno)));
  }
  std::string text(kMostConfigBytes + 1, '\0');  // of weights no more is read
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostConfigBytes) {
    return Refuse(fmt::format("'{}' has more than {} bytes; give a model's config.json", path,
                              kMostConfigBytes));
  }
  Result<ModelKv> model = ParseModelKv(text, dtype);
  if (!model) return Fail(model.error().code, fmt::format("{}: {}", path, model.error().detail));
  return model;
}

}  // namespace kvcove::lab
