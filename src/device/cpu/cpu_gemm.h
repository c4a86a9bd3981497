/* A product's panels: what its files share. cpu_gemm.c cuts c into panels, gemm_panels.c multiplies
 * one, and gemm_heights.c finds with how many rows. */
#ifndef SLI_DEVICE_CPU_CPU_GEMM_H
#define SLI_DEVICE_CPU_CPU_GEMM_H

#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"

#include <stdatomic.h>

typedef struct sli_gemm_job {
    sli_cpu_device *cpu;
    const sli_gemm *gemm;
    bool widens;             /* a and b are bf16 in a product of f32 */
    bool copies_a, copies_b; /* their panels, from rows at a distance that slows dnnl_sgemm */
    sli_ranges rows, columns;
    /* Of panels [is in the last rows][is in the last columns]: how many rows are multiplied, and
     * their primitives; else dnnl_sgemm. */
    sli_height heights[2][2];
    bool use_matmul;
    sli_ranges terms; /* by AMX, of sums: those that are multiplied by one copy of b */
    bool is_apart;    /* a panel of c is made in dense memory, and moved into c */
    const sli_matmul_primitive *sizes[2][2];
    /* [threads, thread_floats]: copies of panels of a and b, then a panel of c in f32, then the
     * primitive's scratch. */
    float *workspace;
    int64_t copy_floats, panel_floats, thread_floats;
    atomic_int code; /* oneDNN's first error */
} sli_gemm_job;

static inline bool sli_gemm_is_invariant(const sli_gemm_job *job)
{
    return job->cpu->base.batch_invariant && job->gemm->is_forward && job->gemm->k > 0;
}

/* Range 0, or the last one. */
static inline sli_range sli_end_range(const sli_ranges *ranges, int last)
{
    return sli_range_at(ranges, last ? ranges->count - 1 : 0);
}

static inline bool sli_gemm_uses_bf16(const sli_gemm_job *job)
{
    return job->gemm->bf16 && !job->widens;
}

static inline int64_t sli_aligned_floats(int64_t count)
{
    return sli_divide_up(count, 16) * 16;
}

/* Each panel is multiplied as it is. */
void sli_gemm_multiply_own_rows(sli_gemm_job *job);

/* Needs job->heights, job->use_matmul and the primitives' scratch. */
void sli_gemm_set_floats(sli_gemm_job *job, int64_t scratch);

/* Finds the primitives for the panels' sizes; job->use_matmul tells whether there are any. */
sl_status sli_gemm_find_primitives(sli_gemm_job *job);

/* Sets the heights of the panels, whose rows are cut again where none fits. */
sl_status sli_gemm_find_heights(sl_device *device, sli_gemm_job *job, sli_pool_task panel);

/* How many of the inner dimension are multiplied at once from `first` on: as many as dnnl_sgemm
 * sums before it adds to c where panels are copied, which gives the bits of the whole product. */
int64_t sli_gemm_inner_count(const sli_gemm_job *job, int64_t first);

/* The distance of a copied panel's rows, one for each term of a sum. */
int64_t sli_gemm_copy_distance(int64_t columns);

/* Tasks of a job, which is their argument: a panel. */
void sli_sgemm_panel(void *argument, int64_t index, int thread);
void sli_matmul_panel(void *argument, int64_t index, int thread);
void sli_bf16_panel(void *argument, int64_t index, int thread);
void sli_amx_panel(void *argument, int64_t index, int thread);

#endif
