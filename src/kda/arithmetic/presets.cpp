#include "kda/arithmetic/presets.hpp"

#include <algorithm>

namespace kda_check::kda {

namespace {

// Of presets that give the same bits `explain` names the last: what is proven stands behind what is not.
constexpr Preset preset_rows[] = {
    {"ideal", "", "every operation within half a unit in the last place", "", "a definition",
     "contraction=fused exponential=exact special=ieee subnormals=gradual reduction=exact storage=none "
     "decay=pair inverse=substitution merge=nearest accumulator=fp32 tail=difference gates=natural delta=wy "
     "beta=rows scale=scores heads=grouped output=chained readout=start update=chained segments=none "
     "stored=fp32 "
     "launch=any"},
    {"ieee", "", "a CPU without contraction", "", "a definition",
     "ideal contraction=separate exponential=libm reduction=sequential"},
    {"h100", "", "kda-check's own GPU kernels", "",
     "proven: on an H100 no bit of any answer, stage or gradient differs",
     "contraction=fused exponential=cuda reduction=simt inverse=blocks:16 tail=suffix"},
    {"h100-mma", "chunk", "kda-check's gpu-chunk on tensor cores, in bf16 and fp16", "",
     "proven: on an H100 no bit of any answer or gradient differs",
     "contraction=fused exponential=cuda-fast special=triton subnormals=gradual reduction=lanes:25 "
     "storage=h100-mma inverse=eliminate:16 merge=nearest accumulator=fp32 tail=difference gates=log2-each "
     "delta=residual beta=rows scale=scores output=chained update=chained segments=none launch=any"},
    {"h100-mma3", "chunk", "kda-check's gpu-chunk on tensor cores, three bf16 numbers for each of fp32", "",
     "proven: on an H100 no bit of any answer or gradient differs",
     "contraction=fused exponential=cuda-fast special=ieee subnormals=gradual reduction=split:25 "
     "storage=none "
     "inverse=eliminate:16 merge=nearest accumulator=fp32 tail=suffix gates=natural delta=residual beta=rows "
     "scale=scores output=chained update=added segments=none launch=any"},
    {"flash-kda-1", "chunk", "FlashKDA from 7afb9f4 on, with --chunk-size 16",
     "vllm-project/FlashKDA 3b225bf, 2026-09-01", "from source",
     "flash-kda inverse=eliminate:8 accumulator=fp32 "
     "storage=bf16@products+bf16@normalised+bf16@exponentials+bf16@u+bf16@prediction+bf16@residual+"
     "bf16@o_inter+bf16@o_intra+bf16@initial_state+bf16@carry",
     16},
    {"attention-gym", "chunk", "attention-gym's chunk_kda on a Blackwell, without its norm and gate",
     "meta-pytorch/attention-gym 7fdb85d, 2026-08-22", "from source",
     "fla decay=anchor-first:16 inverse=blocks:16 update=chained "
     "storage=bf16@normalised+tf32@score_operands+bf16@off_diagonal+bf16@Aqk+bf16@inverse_operands+"
     "bf16@Akk_inv+bf16@operands+bf16@w+bf16@u+bf16@v_new+bf16@state"},
    {"flashinfer-bt16", "chunk",
     "FlashInfer's chunked prefill in one kernel, with a bounded gate and --chunk-size 16",
     "flashinfer-ai/flashinfer fb28d72, 2026-08-22", "from source",
     "contraction=fused exponential=cuda-fast special=fast-floor subnormals=gradual reduction=lanes:25 "
     "storage=bf16@score_operands+bf16@Aqk+bf16@L+fp16@inverse_operands+bf16@Akk_inv+bf16@operands+bf16@w+"
     "bf16@u+bf16@prediction+bf16@residual+bf16@v_new+bf16@state decay=reciprocal:16 "
     "inverse=doubling-wide:8 merge=nearest accumulator=fp32 tail=factored-late gates=log2-each "
     "delta=residual beta=rows scale=output output=chained update=chained launch=norm:8x8x1",
     16},
    {"pallas", "chunk",
     "pallas-kernel's chunk_kda in fp32, full chunks, interpreted by JAX 0.10.2 on an AVX2 CPU",
     "Fred33146/pallas-kernel 141790b, 2026-04-15",
     "proven forwards: 0 elements of o and final_state differ in 11 captures",
     "contraction=fused exponential=xla special=ieee subnormals=flush reduction=xla storage=none "
     "decay=pair-products inverse=solve:16 merge=nearest accumulator=fp32 tail=difference gates=log2-each "
     "delta=blocked beta=rows-late scale=scores output=fused readout=centre update=added segments=none "
     "launch=any"},
    {"sglang-jax", "chunk",
     "sglang-jax's chunk_kda_fwd without its gate, interpreted by JAX 0.10.2 on an AVX2 CPU",
     "primatrix/sglang-jax 66b9481, 2026-05-19",
     "proven forwards: 0 elements of o and final_state differ in 12 captures",
     "pallas storage=sglang-jax decay=pair-rows gates=log2 delta=wy readout=first launch=scan:64"},
    {"vllm-decode-packed", "recurrent", "vLLM's fused_recurrent_kda_packed_decode of Kimi K3",
     "vllm-project/vllm 03c2034", "proven: 0 elements of o and final_state differ in 4 captures",
     "fla-recurrent special=triton-logf launch=block:32x4"},
    {"sglang-decode", "recurrent", "SGLang's fused_sigmoid_gating_delta_rule_update with is_kda",
     "sgl-project/sglang 00e1106", "proven: 0 elements of o and final_state differ in 12 captures",
     "fla-recurrent special=triton-logf launch=block:32x1"},
    {"vllm-decode", "recurrent",
     "vLLM's fused_recurrent_kda of Kimi K3 with 49 to 96 or more than 192 sequences times heads",
     "vllm-project/vllm 03c2034",
     "proven for K above 32: 0 elements of o and final_state differ in 15 captures",
     "fla-recurrent special=triton-logf launch=block:8x1"},
    {"llama.cpp", "recurrent",
     "llama.cpp's gated_delta_net with a decay for every channel, 64 or 128 of them",
     "ggml-org/llama.cpp 0196e69", "proven: 0 elements of o and final_state differ in 14 captures",
     "contraction=fused exponential=cuda-fast special=ieee subnormals=flush reduction=tree:32 storage=none "
     "scale=output update=decay-fused"},
    {"llama.cpp-narrow", "recurrent", "the same with 16 or 32 channels: nvcc rounds the other product",
     "ggml-org/llama.cpp 0196e69", "proven: 0 elements of o and final_state differ in 6 captures",
     "llama.cpp update=chained"},
    {"cula-sm90", "chunk", "cuLA's cula_kda_prefill on an H100, beta after its sigmoid",
     "inclusionAI/cuLA fa742a2, 2026-04-24",
     "proven forwards: 0 elements of o and final_state differ in 24 captures, except NaN that only cuLA has "
     "in 7",
     "contraction=fused exponential=cuda-fast special=triton subnormals=flush reduction=triton-rows:25 "
     "storage=bf16@normalised+tf32@score_operands+bf16@Aqk+fp16@L+fp16@inverse_operands+fp16@Akk_inv+"
     "bf16@operands+bf16@w+bf16@u+bf16@prediction+bf16@residual+bf16@v_new+bf16@state "
     "decay=anchor-first:16 inverse=eliminate:8 merge=split:16 accumulator=fp32 tail=difference gates=log2 "
     "delta=residual beta=columns scale=scores output=chained update=chained launch=any"},
    {"cudnn-sm90", "chunk", "cuDNN's kda_fused for Hopper, one piece a sequence, with --chunk-size 16",
     "NVIDIA/cudnn-frontend 4703033",
     "proven forwards: 0 elements of o and final_state differ in 22 captures",
     "contraction=fused exponential=cuda-fast special=fast-division subnormals=flush "
     "reduction=triton-rows:25 "
     "storage=bf16@normalised+bf16@score_operands+bf16@Aqk+bf16@Akk_inv+bf16@operands+bf16@w+bf16@u+"
     "bf16@v_new+bf16@state decay=reciprocal:16 inverse=chains:16 merge=nearest accumulator=fp32 "
     "tail=factored gates=natural delta=chained beta=keys scale=q-late output=chained update=chained "
     "segments=none launch=norm:4x32x1+scan:1",
     16},
    {"flashinfer-decode", "recurrent",
     "FlashInfer's packed_kda_decode with the Cake backend, a call for every token, up to 14 sequences",
     "flashinfer-ai/flashinfer fb28d72, 2026-08-22",
     "proven: 0 elements of o and final_state differ in 15 captures",
     "contraction=fused exponential=cuda-fast special=fast-signed subnormals=flush "
     "reduction=lanes-paired:25 storage=none scale=norm update=chained stored=bf16"},
    {"fla", "chunk", "FLA's chunk_kda on an H100", "fla-org/flash-linear-attention bc3b101d, 2026-08-22",
     "proven: 0 elements of o, final_state and stages differ in 97 captures, of gradients in the 95 that "
     "have them",
     "contraction=fused exponential=cuda-fast special=triton reduction=triton:25 storage=triton "
     "inverse=blocks:16 tail=difference gates=log2 update=transposed"},
    {"fla-recurrent", "recurrent", "FLA's fused_recurrent_kda on an H100",
     "fla-org/flash-linear-attention bc3b101d, 2026-08-22",
     "proven: 0 elements of o and final_state differ in 97 captures",
     "contraction=fused exponential=cuda-fast special=triton reduction=triton:25 storage=none delta=fused"},
    {"flash-kda", "chunk", "FlashKDA on an H100 before its inverse was replaced, with --chunk-size 16",
     "MoonshotAI/FlashKDA 1ce47ea, 2026-07-29",
     "proven forwards: 0 elements of o and final_state differ in 12 captures",
     "contraction=fused exponential=cuda-fast special=fast subnormals=flush reduction=lanes:25 "
     "storage=flash-kda decay=factored:16 inverse=doubling:16 accumulator=fp16 tail=factored gates=log2-each "
     "delta=residual scale=q output=apart update=added",
     16},
};

}  // namespace

std::span<const Preset> presets() { return preset_rows; }

const Preset& preset_named(std::string_view name) {
  return *std::ranges::find(preset_rows, name, &Preset::name);
}

}  // namespace kda_check::kda
