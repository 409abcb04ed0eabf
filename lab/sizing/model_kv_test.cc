// SPDX-License-Identifier: Apache-2.0
#include "lab/sizing/model_kv.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>

namespace kvcove::lab {
namespace {

using connector::GroupKind;

// The fields that matter here, of configurations as Hugging Face has them.
constexpr const char* kLlama3 = R"({"model_type": "llama", "hidden_size": 4096,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "torch_dtype": "bfloat16"})";                          // meta-llama/Meta-Llama-3-8B
constexpr const char* kDeepSeekV3 = R"({"model_type": "deepseek_v3", "hidden_size": 7168,
  "kv_lora_rank": 512, "num_attention_heads": 128, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128,
  "torch_dtype": "bfloat16"})";                          // deepseek-ai/DeepSeek-V3
constexpr const char* kDeepSeekV32 = R"({"model_type": "deepseek_v32", "hidden_size": 7168,
  "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "kv_lora_rank": 512,
  "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128,
  "torch_dtype": "bfloat16"})";                          // deepseek-ai/DeepSeek-V3.2
constexpr const char* kGemma2 = R"({"model_type": "gemma2", "head_dim": 256, "hidden_size": 3584,
  "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
  "sliding_window": 4096, "torch_dtype": "bfloat16"})";  // google/gemma-2-9b-it
constexpr const char* kGemma3 = R"({"model_type": "gemma3", "torch_dtype": "bfloat16",
  "text_config": {"model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376,
    "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
    "sliding_window": 1024},
  "vision_config": {"num_hidden_layers": 27}})";         // google/gemma-3-27b-it
constexpr const char* kMistral = R"({"model_type": "mistral", "hidden_size": 4096,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "sliding_window": 4096, "torch_dtype": "bfloat16"})";  // mistralai/Mistral-7B-v0.1
constexpr const char* kQwen2 = R"({"model_type": "qwen2", "hidden_size": 5120,
  "max_window_layers": 48, "num_attention_heads": 40, "num_hidden_layers": 64,
  "num_key_value_heads": 8, "sliding_window": 131072, "torch_dtype": "bfloat16",
  "use_sliding_window": false})";                        // sail/Sailor2-20B

ModelKv Parsed(std::string_view config, std::string_view dtype = "auto") {
  auto model = ParseModelKv(config, dtype);
  EXPECT_TRUE(model) << model.error().detail;
  return model ? *model : ModelKv{};
}
std::string RefusalOf(std::string_view config, std::string_view dtype = "auto") {
  const auto model = ParseModelKv(config, dtype);
  return model ? "" : model.error().detail;
}
void ExpectIn(std::string_view part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}
// A right configuration with fields behind it, which take the place of those before.
std::string With(std::string_view fields) {
  return fmt::format(R"({{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "torch_dtype": "bfloat16", {}}})",
                     fields);
}

TEST(ModelKvTest, HeadsOfGroupsShareKv) {
  const ModelKv model = Parsed(kLlama3);
  EXPECT_EQ(model.token_bytes(), 128U << 10) << "32 layers, key and value, 8 heads of 128, 2 bytes";
  EXPECT_EQ(model.layers(), 32U);
  ASSERT_EQ(model.groups.size(), 1U);
  EXPECT_EQ(model.groups[0].kind, GroupKind::kFull);
  EXPECT_EQ(model.groups[0].heads, 8U);
  EXPECT_EQ(Parsed(kLlama3, "fp8").token_bytes(), 64U << 10);
  EXPECT_EQ(Parsed(kLlama3, "float32").token_bytes(), 256U << 10);
}

TEST(ModelKvTest, ALatentIsOneForAllHeads) {
  const ModelKv model = Parsed(kDeepSeekV3);
  EXPECT_EQ(model.token_bytes(), 61U * (512 + 64) * 2);
  ASSERT_EQ(model.groups.size(), 1U);
  EXPECT_EQ(model.groups[0].heads, 1U) << "every rank has the same bytes";
  EXPECT_EQ(Parsed(kDeepSeekV3, "fp8").token_bytes(), 61U * (512 + 64));
}

// 132 bytes a layer of index, and 656 of the latent with its scales: vLLM's fp8_ds_mla.
TEST(ModelKvTest, AnIndexIsKeptBesideTheLatent) {
  EXPECT_EQ(Parsed(kDeepSeekV32).token_bytes(), 61U * ((512 + 64) * 2 + 132));
  EXPECT_EQ(Parsed(kDeepSeekV32, "fp8").token_bytes(), 61U * (656 + 132));
}

TEST(ModelKvTest, EverySecondLayerOfGemma2HasAWindow) {
  const ModelKv model = Parsed(kGemma2);
  EXPECT_EQ(model.token_bytes(), 42U * 8192);
  ASSERT_EQ(model.groups.size(), 2U);
  EXPECT_EQ(model.groups[0].layers, 21U);
  EXPECT_EQ(model.groups[1].kind, GroupKind::kWindow);
  EXPECT_EQ(model.groups[1].window_tokens, 4096U);
  EXPECT_EQ(model.groups[1].layers, 21U);
  EXPECT_EQ(model.HitBytes(1000), 1000U * 42 * 8192);
  EXPECT_EQ(model.HitBytes(8192), (8192U + 4096) * 21 * 8192) << "of a window its end alone";
}

TEST(ModelKvTest, ADecoderBesideAnEyeHasFieldsOfItsOwn) {
  const ModelKv model = Parsed(kGemma3);
  EXPECT_EQ(model.type, "gemma3_text");
  EXPECT_EQ(model.token_bytes(), 62ULL * 8192);
  ASSERT_EQ(model.groups.size(), 7U) << "10 layers see everything; 52 in groups of at most 10";
  std::uint32_t windows = 0;
  for (const KvGroup& group : model.groups) {
    if (group.kind == GroupKind::kWindow) windows += group.layers;
  }
  EXPECT_EQ(windows, 52U);
}

TEST(ModelKvTest, EveryLayerOfMistralHasAWindow) {
  const ModelKv model = Parsed(kMistral);
  ASSERT_EQ(model.groups.size(), 1U);
  EXPECT_EQ(model.groups[0].kind, GroupKind::kWindow);
  EXPECT_EQ(model.HitBytes(100'000), 4096ULL * (128 << 10));
}

TEST(ModelKvTest, AWindowThatIsNotUsedIsNone) {
  const ModelKv model = Parsed(kQwen2);
  ASSERT_EQ(model.groups.size(), 1U);
  EXPECT_EQ(model.groups[0].kind, GroupKind::kFull);
  const ModelKv used =
      Parsed(With(R"("sliding_window": 64, "use_sliding_window": true, "max_window_layers": 3)"));
  EXPECT_EQ(used.groups.back().layers, 1U) << "the layers from the third on";
  EXPECT_EQ(used.groups.back().kind, GroupKind::kWindow);
}

TEST(ModelKvTest, LayerTypesGoBeforeWhatIsKnownOfAModel) {
  const ModelKv model = Parsed(With(R"("sliding_window": 64, "layer_types":
      ["full_attention", "sliding_attention", "sliding_attention", "full_attention"])"));
  EXPECT_EQ(model.groups[0].layers, 2U);
  EXPECT_EQ(model.groups[1].window_tokens, 64U);
  ExpectIn("one name for each of the 4 layers",
           RefusalOf(With(R"("layer_types": ["full_attention"])")));
  ExpectIn("'sliding_window' is missing",
           RefusalOf(With(R"("layer_types": ["full_attention", "sliding_attention",
             "full_attention", "full_attention"])")));
}

TEST(ModelKvTest, AMissingFieldIsNamed) {
  ExpectIn("'num_hidden_layers' is missing", RefusalOf(R"({"hidden_size": 1})"));
  ExpectIn("'num_key_value_heads' is missing; its default is the model class's",
           RefusalOf(R"({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                         "torch_dtype": "float16"})"));
  ExpectIn("'hidden_size' is missing; without it 'head_dim' must be there",
           RefusalOf(R"({"num_hidden_layers": 2, "num_key_value_heads": 4,
                         "torch_dtype": "float16"})"));
  ExpectIn("--kv-dtype", RefusalOf(R"({"num_hidden_layers": 2, "num_key_value_heads": 4,
                                       "head_dim": 64})"));
  EXPECT_EQ(
      RefusalOf(R"({"num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 64})", "fp8"),
      "");
  ExpectIn("'qk_rope_head_dim' is missing", RefusalOf(With(R"("kv_lora_rank": 512)")));
}

// google/gemma-3-12b-it has heads of 256, which are no 3840 / 16.
TEST(ModelKvTest, AHeadThatTheClassKnowsIsAskedFor) {
  constexpr const char* kGemma3Of12B = R"({{"model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {{"model_type": "gemma3_text", "hidden_size": 3840, {}
      "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 8,
      "sliding_window": 1024}}}})";
  ExpectIn("'head_dim' is missing; its default is the model class's",
           RefusalOf(fmt::format(fmt::runtime(kGemma3Of12B), "")));
  EXPECT_EQ(Parsed(fmt::format(fmt::runtime(kGemma3Of12B), R"("head_dim": 256,)")).token_bytes(),
            48U * 8192);
}

TEST(ModelKvTest, AWrongFieldIsNamed) {
  ExpectIn("not a JSON object", RefusalOf("layers: 32"));
  ExpectIn("not a JSON object", RefusalOf("[]"));
  for (const char* wrong : {"0", "-3", "1.5", "\"32\"", "70000", "[]"}) {
    ExpectIn("'num_key_value_heads' is",
             RefusalOf(With(fmt::format(R"("num_key_value_heads": {})", wrong))));
  }
  ExpectIn("is no multiple of 'num_attention_heads' 24",
           RefusalOf(With(R"("num_attention_heads": 24)")));
  ExpectIn("'torch_dtype' is 'int8'", RefusalOf(With(R"("torch_dtype": "int8")")));
  ExpectIn("add 'layer_types'", RefusalOf(With(R"("sliding_window": 4096)")));
}

// A wrong size would be believed; the engine itself knows better.
TEST(ModelKvTest, OtherCachesAreRefused) {
  ExpectIn("'mamba_d_state'", RefusalOf(With(R"("mamba_d_state": 128)")));
  ExpectIn("kvcove.vllm explain", RefusalOf(With(R"("num_kv_shared_layers": 2)")));
  EXPECT_EQ(RefusalOf(With(R"("num_kv_shared_layers": 0)")), "");
  ExpectIn("'attn_type_list'", RefusalOf(With(R"("attn_type_list": [1, 0, 1, 0])")));
  EXPECT_EQ(RefusalOf(With(R"("attn_type_list": [1, 1, 1, 1])")), "") << "MiniMax-M2";
  ExpectIn("'use_cla'", RefusalOf(With(R"("use_cla": true, "cla_share_factor": 2)")));
  ExpectIn("a layer without KV of each token",
           RefusalOf(With(R"("layer_types": ["linear_attention", "full_attention",
             "full_attention", "full_attention"])")));
  ExpectIn("'v_head_dim' 64 differs", RefusalOf(With(R"("v_head_dim": 64)")));
  ExpectIn("is_encoder_decoder", RefusalOf(With(R"("is_encoder_decoder": true)")));
}

TEST(ModelKvTest, AFileThatCannotBeReadIsNamed) {
  ExpectIn("cannot read '/nowhere/config.json'",
           ReadModelKv("/nowhere/config.json", "auto").error().detail);
  ExpectIn("it is a directory", ReadModelKv("/", "auto").error().detail);
  ExpectIn("more than 4194304 bytes", ReadModelKv("/dev/zero", "auto").error().detail);
  const std::string path = testing::TempDir() + "model_kv_test.json";
  std::ofstream(path) << "{}";
  ExpectIn(path + ": the field 'num_hidden_layers'", ReadModelKv(path, "auto").error().detail);
  std::ofstream(path) << kLlama3;
  EXPECT_EQ(ReadModelKv(path, "auto")->token_bytes(), 128U << 10);
}

}  // namespace
}  // namespace kvcove::lab
