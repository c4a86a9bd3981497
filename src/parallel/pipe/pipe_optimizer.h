/* A pipe's optimizers stage by stage, and lists of its tensors and of their state. */
#ifndef SLI_PARALLEL_PIPE_PIPE_OPTIMIZER_H
#define SLI_PARALLEL_PIPE_PIPE_OPTIMIZER_H

#include "io/checkpoint/format.h"
#include "parallel/ddp/zero.h"
#include "sluice/pipe_optimizer.h"
#include "tensor/tensor.h"

/* ---- Tensors by name (pipe_state.c) --------------------------------------------------------- */

/* In the model's order: what checkpoints consist of. Names do not depend on how the model is cut,
 * so what one cut saved another can load.
 *
 * Of a sharded optimizer's state a rank has ranges, which end where its shard of a bucket ends:
 *
 *     a bucket    | 0.weight                | 1.bias | 2.weight           |
 *     shards      |- rank 0 ----|--- rank 1 ------|------- rank 2 --------|
 *
 *     rank 1      0.weight.exp_avg from element 112 on, 1.bias.exp_avg, 2.weight.exp_avg up to 48
 *
 * A tensor of a head that is cut over the pipe's ranks has an entry for each of them, one leading
 * to the next.
 */
typedef struct sli_tensor_entry {
    sl_tensor *tensor;    /* a handle on what the item's data are; NULL: nothing, or a copy */
    sli_host_array host;  /* once opened, where the host does not reach the tensor's memory */
    int64_t first, count; /* the elements of the whole tensor, row by row, that are here */
    int64_t whole;        /* how many the entry has on all ranks: the tensor's, or its part's */
    int stage, owner;     /* the stage, and the rank of the pipe's group that has it */
    bool is_buffer;       /* no parameter that is trained */
    void *gathered;       /* the item's data, where sli_tensors_gather has brought them here */
    size_t next;          /* of a cut tensor: the entry of its next part; 0: none */
} sli_tensor_entry;

/* All zeros: none. */
typedef struct sli_tensors {
    sl_safetensors_item *items; /* [entry_count]: of whole tensors; data: the elements that are
                                   here */
    sli_tensor_entry *entries;  /* [entry_count] */
    size_t count, entry_count;  /* of tensors; the entries behind these are of further parts */
    bool may_be_mapped;         /* values of f32 may be a file's memory: the pipe trains none */
    char *shapes;               /* of a copy with segments: their tensors', as metadata */
    char *memory;               /* the data of a copy, kept from one to the next */
    size_t memory_bytes;        /* of it */
} sli_tensors;

/* Each of these replaces a list, also by an error, and is cleared by sli_tensors_clear. All ranks
 * of a pipe's group have the same list; what other ranks have is without elements and data. The
 * data are the tensors' own memory where the host reaches it, else NULL until sli_tensors_open.
 *
 * All parameters and buffers. */
sl_status sli_tensors_of_model(const sl_pipe *pipe, sli_tensors *out);

/* Copies of the trained parameters' buckets, buckets[stage][bucket], under the parameters' names.
 */
sl_status sli_tensors_of_buckets(const sl_pipe *pipe, sl_tensor **const *buckets, sli_tensors *out);

/* What this rank has of the optimizers' state, as "0.weight.exp_avg", …; where `steps`, with each
 * parameter's number of steps, "0.weight.step". */
sl_status sli_tensors_of_optimizer(const sl_pipe_optimizer *optimizer, bool steps,
                                   sli_tensors *out);

/* Gives the items data in host memory, as copies where that is needed; with `reads`, of what the
 * tensors hold. Store writes the copies to the tensors. */
sl_status sli_tensors_open(sli_tensors *tensors, bool reads);

/* For writers of f32. Errors: SL_ERR_UNSUPPORTED for a tensor that the pipe has in another type. */
sl_status sli_tensors_need_f32(const sli_tensors *tensors);
sl_status sli_tensors_store(const sli_tensors *tensors);

/* Reads what is here of the part's tensors, which must be exactly those of the list. Compares no
 * checksums. Errors: as sl_checkpoint_read. */
sl_status sli_tensors_read(const sl_checkpoint_reader *reader, const char *part,
                           sli_tensors *tensors);

/* Whether the part "optimizer" has each parameter's number of steps. A run's checkpoint has it once
 * for all, as "step" of its state. */
bool sli_checkpoint_has_steps(const sl_checkpoint_reader *reader);

/* Makes cut tensors whole where the last stage is: a copy in host memory, which the list has;
 * other processes' lists lose them. Every process of the pipe whose head is cut calls it, also
 * after an error of its own, `status`, which is then that of all of them. */
sl_status sli_tensors_gather(const sl_pipe *pipe, sli_tensors *tensors, sl_status status);

/* Makes the list a copy in host memory, from which a checkpoint is written while training goes on:
 * of the tensors with elements here, each stage's copied by its own worker. What is no whole tensor
 * becomes a segment (io/checkpoint/format.h). `keeps_all`: tensors without elements stay listed,
 * for the rank that collects the others' (state_stream.c). */
sl_status sli_tensors_copy(sl_pipe *pipe, sli_tensors *tensors, bool keeps_all);

/* Rank 0 of a group writes the tensors of these lists, and the other ranks serve the elements that
 * they have; all of them have the same lists, and call this at the same time. An entry's elements
 * are those of its owner and of every rank so many further, the same stage's of other replicas. */
typedef struct sli_state_stream {
    sl_group *group;
    int stride;
    const sli_tensors *lists[3]; /* borrowed; those that are written: not all zeros */
    void *buffer;                /* [bytes], zero at first: rank 0's */
    size_t bytes;
} sli_state_stream;

/* Rank 0's: a source (sli_item_source) of the items of the lists; and the end of what the others
 * serve, also after an error. Gives `status`, else an error of its own. */
sl_status sli_state_stream_read(void *context, const sl_safetensors_item *item, const void **data);
sl_status sli_state_stream_end(sli_state_stream *stream, sl_status status);

/* The other ranks': returns when rank 0 has ended. */
sl_status sli_state_stream_serve(const sli_state_stream *stream);

void sli_tensors_empty(sli_tensors *tensors); /* keeps the memory of a copy */
void sli_tensors_clear(sli_tensors *tensors);

/* ---- Optimizers ----------------------------------------------------------------------------- */

typedef struct sli_stage_optimizer {
    sl_optimizer *whole; /* of all the stage's parameters; if sharded, a copy or NULL */
    sli_zero *zero;      /* this rank's shard of it; NULL: not sharded */
} sli_stage_optimizer;

struct sl_pipe_optimizer {
    sl_pipe *pipe;
    sl_optimizer_options options;
    const sl_ddp *ddp; /* over whose replicas the state is sharded; NULL: it is whole */
    bool error_if_nonfinite;
    int shard, shards;     /* of the optimizer's state: this rank's, of how many */
    double lr, grad_scale; /* of the step under way */
    sli_tensors tensors;   /* the list made last */
    int stages;
    sli_stage_optimizer stage[]; /* [stages] */
};

/* A stage's optimizer with the state that this rank has, all of it or its shard. */
sl_optimizer *sli_pipe_optimizer_own(const sl_pipe_optimizer *optimizer, int stage);

/* Makes each stage's `whole`: where the state is sharded, a copy on rank 0, which lives until the
 * next call. Every rank calls it. */
sl_status sli_pipe_optimizer_gather(sl_pipe_optimizer *optimizer);
void sli_pipe_optimizer_release(sl_pipe_optimizer *optimizer); /* the copies */

#endif
