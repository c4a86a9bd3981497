/* What attention's two ways share: cpu_attention.c has that of short rows, attention_tiles.c that
 * of long ones. */
#ifndef SLI_DEVICE_CPU_CPU_ATTENTION_H
#define SLI_DEVICE_CPU_CPU_ATTENTION_H

#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <stdatomic.h>

typedef struct sli_attention_job {
    sl_device *device;
    const sli_cpu_kernels *kernels;
    int64_t samples, positions, heads, key_heads, head_width;
    int64_t first_query, room;
    bool causal, adds;
    const float *qkv, *kv, *out, *grad_out; /* kv: NULL where k and v are in qkv */
    const sli_dropout *dropout;
    float *to; /* out, or grad_qkv */
    float *log_sum_exp;
    float *workspace; /* [threads, thread_floats] */
    int64_t thread_floats;
    float *out_dot_grad; /* of long rows, backward: sums of out times its gradient, as log_sum_exp
                            lies */
    int64_t out_dot_grad_floats;
    bool uses_amx;    /* of long rows: products of bf16 by AMX */
    bool own_kernels; /* of short rows: they multiply */
    int64_t ld;       /* of short rows: row distance of scores */
    int64_t width;    /* of long rows: head_width in whole vectors */
    int64_t wave;     /* of long rows: backward's */
    atomic_int code;  /* oneDNN's first error */
} sli_attention_job;

/* One sample's head: where its matrices are. */
typedef struct sli_attention_head {
    const float *q, *k, *v;    /* q from the first query on */
    int64_t ld, kv_ld, out_ld; /* row distances of q, of k and v, and of out */
    int64_t q_at, k_at, v_at;  /* offsets of the first elements, of position 0, in qkv; of k and v
                                  in kv where there is one */
    int64_t out_at;            /* and in out, of the first query */
    int64_t dropout_row;       /* of position 0 */
    int64_t lse_at;            /* of the first query in log_sum_exp */
} sli_attention_head;

/* `index` counts all samples' heads. (cpu_attention.c) */
sli_attention_head sli_find_head(const sli_attention_job *job, int64_t index);

/* job->workspace, of job->thread_floats for each of the device's threads, and job->out_dot_grad.
 * (cpu_attention.c) */
sl_status sli_attention_open_workspace(sli_attention_job *job);
void sli_attention_close_workspace(sli_attention_job *job);

/* Rows of any length, in tiles. (attention_tiles.c) */
sl_status sli_attend_in_tiles(sli_attention_job *job);
sl_status sli_attend_in_tiles_backward(sli_attention_job *job);

#endif
