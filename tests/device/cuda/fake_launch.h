/* Comes before the plugin's sources, and replaces their launches and version: see fake_launch.c. */
#ifndef TESTS_DEVICE_CUDA_FAKE_LAUNCH_H
#define TESTS_DEVICE_CUDA_FAKE_LAUNCH_H

/* FAKE_CUDA_VERSION=TEXT in the environment, else its own. */
const char *fake_version(const char *own);
#define SLUICE_VERSION fake_version(OWN_VERSION)

#define sli_launch_gemm_epilogue      fake_launch_gemm_epilogue
#define sli_launch_epilogue           fake_launch_epilogue
#define sli_launch_epilogue_backward  fake_launch_epilogue_backward
#define sli_launch_embedding          fake_launch_embedding
#define sli_launch_embedding_backward fake_launch_embedding_backward
#define sli_launch_add_dropout        fake_launch_add_dropout
#define sli_launch_add_norm           fake_launch_add_norm
#define sli_launch_add_norm_backward  fake_launch_add_norm_backward
#define sli_launch_swiglu             fake_launch_swiglu
#define sli_launch_swiglu_backward    fake_launch_swiglu_backward
#define sli_launch_rotary             fake_launch_rotary
#define sli_launch_attention          fake_launch_attention
#define sli_launch_attention_backward fake_launch_attention_backward
#define sli_launch_cross_entropy      fake_launch_cross_entropy
#define sli_launch_convert            fake_launch_convert
#define sli_launch_add                fake_launch_add
#define sli_launch_sgd                fake_launch_sgd
#define sli_launch_adamw              fake_launch_adamw
#define sli_launch_norm_terms         fake_launch_norm_terms
#define sli_launch_combine            fake_launch_combine
#define sli_launch_initialize         fake_launch_initialize

#endif
