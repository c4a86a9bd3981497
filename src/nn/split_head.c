#include "nn/split_head.h"

#include "core/bf16.h"
#include "core/error.h"
#include "nn/module.h"
#include "nn/split_head_sums.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Columns of a block's matrix are a multiple of this. One behind its classes is that of an
 * impossible class, which is every row's target: the kernel then gives the softmax of all rows, and
 * the log sum exp beside the impossible class's logit, whose exponential is 0. */
enum { COLUMN_STEP = 16 };
static const float impossible = -1e6f;

int64_t sli_split_head_first_class(int64_t classes, int blocks, int block)
{
    return classes / blocks * block + (block < classes % blocks ? block : classes % blocks);
}

sli_class_range sli_class_range_of(int64_t classes, int blocks, int first, int end)
{
    return (sli_class_range){sli_split_head_first_class(classes, blocks, first),
                             sli_split_head_first_class(classes, blocks, end)};
}

sli_class_range sli_split_head_range(const sli_split_head *part)
{
    return sli_class_range_of(part->classes, part->blocks, part->first, part->end);
}

int sli_split_head_blocks(int64_t classes, int blocks)
{
    return blocks < classes ? blocks : (int)classes;
}

void sli_split_head_find_part(int blocks, int index, int parts, int *first, int *end)
{
    *first = sli_sum_tree_first(blocks, index, parts);
    *end = sli_sum_tree_first(blocks, index + 1, parts);
}

double sli_split_head_fraction(int blocks, int index, int parts)
{
    int first, end;
    sli_split_head_find_part(blocks, index, parts, &first, &end);
    return (double)(end - first) / blocks;
}

/* ---- Checking --------------------------------------------------------------------------- */

static sl_status refuse(const char *why)
{
    return sl_error(SL_ERR_UNSUPPORTED, "the head cannot be split: %s", why);
}

/* The weight may be tied to the embedding, a table of the model's first module. */
static bool has_other_tie(const sl_module *model, const sli_linear *head)
{
    const sl_parameter *owner = head->weight->tied_to, *bias = head->bias;
    if (head->weight->ties || (bias && (bias->ties || bias->tied_to)))
        return true;
    return owner && (!owner->is_table || owner->ties->next_tie ||
                     sli_module_index_in(model, owner->module) != 0);
}

sl_status sli_split_head_check(const sl_module *model, sl_precision precision, bool on_host,
                               int blocks, int parts)
{
    const sli_linear *head =
        sli_module_as_linear(sl_module_child(model, sl_module_child_count(model) - 1));
    if (!head)
        return refuse("the last module must be a linear layer");
    if (head->lora.a || !sli_parameter_is_trained(head->weight) || head->is_conv1d)
        return refuse("its weight must be trained, without an adapter");
    if (has_other_tie(model, head))
        return refuse("it may be tied to the embedding of the first module alone");
    if (precision == SL_PRECISION_TF32)
        return refuse("the precision must be f32 or bf16");
    if (!on_host)
        return refuse("the devices must be CPUs");
    blocks = sli_split_head_blocks(head->out, blocks);
    if (blocks < parts)
        return sl_error(SL_ERR_INVALID,
                        "the head's %" PRId64 " classes in %d block%s are too few for %d ranks",
                        head->out, blocks, blocks == 1 ? "" : "s", parts);
    return SL_OK;
}

/* ---- Blocks ----------------------------------------------------------------------------- */

/* One block of a part. */
typedef struct head_block {
    int index;              /* among the part's */
    int64_t first, classes; /* in the whole head */
    int64_t row;            /* its first in the part */
    int64_t columns;        /* of its matrix */
    int64_t offset;         /* of its matrix in the record's softmax */
} head_block;

static int64_t block_columns(int64_t classes)
{
    return (classes + COLUMN_STEP) / COLUMN_STEP * COLUMN_STEP;
}

static head_block first_block(const sli_split_head *part)
{
    int64_t first = sli_split_head_first_class(part->classes, part->blocks, part->first);
    int64_t end = sli_split_head_first_class(part->classes, part->blocks, part->first + 1);
    return (
        head_block){.first = first, .classes = end - first, .columns = block_columns(end - first)};
}

static head_block next_block(const sli_split_head *part, const head_block *block, int64_t rows)
{
    int number = part->first + block->index + 1;
    int64_t first = block->first + block->classes;
    int64_t classes =
        number < part->end
            ? sli_split_head_first_class(part->classes, part->blocks, number + 1) - first
            : 0;
    return (head_block){.index = block->index + 1,
                        .first = first,
                        .classes = classes,
                        .row = block->row + block->classes,
                        .columns = block_columns(classes),
                        .offset = block->offset + rows * block->columns};
}

static int block_count(const sli_split_head *part)
{
    return part->end - part->first;
}

static bool is_bf16(const sli_split_head *part)
{
    return sl_tensor_dtype(part->weight) == SL_BF16;
}

static size_t element_bytes(bool bf16)
{
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* Element `offset` of a tensor of products. */
static void *element(const sl_tensor *tensor, int64_t offset)
{
    return (char *)sl_tensor_data(tensor) +
           (size_t)offset * element_bytes(sl_tensor_dtype(tensor) == SL_BF16);
}

/* target[i] += weight * row[i], of a tensor of products. */
static void add_row(const sl_tensor *tensor, int64_t row, int64_t width, float weight,
                    float *target)
{
    const void *data = element(tensor, row * width);
    if (sl_tensor_dtype(tensor) == SL_BF16)
        for (int64_t i = 0; i < width; i++)
            target[i] += weight * sli_f32_from_bf16(((const uint16_t *)data)[i]);
    else
        for (int64_t i = 0; i < width; i++)
            target[i] += weight * ((const float *)data)[i];
}

void sli_split_head_clear(sli_split_head_record *record)
{
    sl_tensor_destroy(&record->in);
    sl_tensor_destroy(&record->targets);
    sl_tensor_destroy(&record->softmax);
    free(record->log_sums);
    record->log_sums = NULL;
}

sli_split_head_bytes sli_split_head_plan(int64_t classes, int64_t width, int blocks, int parts,
                                         int64_t rows, bool bf16)
{
    sli_split_head_bytes out = {0};
    blocks = sli_split_head_blocks(classes, blocks);
    int64_t columns = block_columns((classes + blocks - 1) / blocks);
    int64_t sums =
        rows * (width * (int64_t)sizeof(float) + SLI_HEAD_NODE_NUMBERS * (int64_t)sizeof(double));
    int64_t logits = bf16 ? rows * columns * (int64_t)sizeof(float) : 0;
    int most_nodes = 0, all_nodes = 0, height = 0, most_blocks = 0;
    for (int p = 0; p < parts; p++) {
        int first, end, ends[SLI_SUM_TREE_MOST_NODES];
        sli_split_head_find_part(blocks, p, parts, &first, &end);
        int nodes = sli_sum_tree_nodes(first, end, blocks, ends);
        int own_height = sli_sum_tree_height(first, end, blocks);
        most_nodes = nodes > most_nodes ? nodes : most_nodes;
        all_nodes += nodes;
        height = own_height > height ? own_height : height;
        most_blocks = end - first > most_blocks ? end - first : most_blocks;
    }
    out.record =
        most_blocks * rows * (columns * (int64_t)element_bytes(bf16) + (int64_t)sizeof(double));
    int64_t weights = rows * width * (int64_t)sizeof(float);
    out.sums = most_nodes * sums + weights;
    out.all_sums = all_nodes * sums + weights;
    out.workspace = height * sums + logits;
    return out;
}

/* ---- Forward ---------------------------------------------------------------------------- */

/* Memory of one forward beside what it gives. */
typedef struct forward_room {
    sl_tensor *logits; /* [rows, columns of the largest block] f32; NULL: the softmax is */
    sl_tensor *sums;   /* [height * rows, D] */
    double *numbers;   /* [height][rows][SLI_HEAD_NODE_NUMBERS] */
    double *losses;    /* [rows] */
    int32_t *targets;  /* [rows] of the kernel: the impossible class */
} forward_room;

static void room_clear(forward_room *room)
{
    sl_tensor_destroy(&room->logits);
    sl_tensor_destroy(&room->sums);
    free(room->numbers);
    free(room->losses);
    free(room->targets);
}

static sl_status create_room(const sli_split_head *part, sl_device *device, int64_t rows,
                             forward_room *room)
{
    int height = sli_sum_tree_height(part->first, part->end, part->blocks);
    int64_t columns = block_columns((part->classes + part->blocks - 1) / part->blocks);
    sl_shape logits = sl_shape_2d(rows, columns), sums = sl_shape_2d(height * rows, part->width);
    if (is_bf16(part))
        SL_TRY(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_F32, &logits, &room->logits));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_F32, &sums, &room->sums));
    size_t count = (size_t)rows;
    room->numbers =
        calloc((size_t)height * count * SLI_HEAD_NODE_NUMBERS + 1, sizeof *room->numbers);
    room->losses = calloc(count + 1, sizeof *room->losses);
    room->targets = calloc(count + 1, sizeof *room->targets);
    if (!room->numbers || !room->losses || !room->targets)
        return sli_no_memory(NULL, "the sums of %lld rows", (long long)rows);
    return SL_OK;
}

static sl_status create_record(const sli_split_head *part, const sl_tensor *in,
                               const sl_tensor *targets, sli_split_head_record *record)
{
    sl_device *device = sl_tensor_device(in);
    int64_t rows = sl_tensor_rows(in);
    sl_dtype dtype = sl_tensor_dtype(part->weight);
    head_block block = first_block(part);
    while (block.classes > 0)
        block = next_block(part, &block, rows);
    sl_shape shape = sl_shape_1d(block.offset);
    SL_TRY(sl_tensor_dtype(in) == dtype
               ? sl_tensor_alias(in, &record->in)
               : sli_tensor_as(in, dtype, SL_MEMORY_ACTIVATIONS, &record->in));
    SL_TRY(sl_tensor_alias(targets, &record->targets));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, dtype, &shape, &record->softmax));
    record->log_sums =
        calloc((size_t)block_count(part) * (size_t)rows + 1, sizeof *record->log_sums);
    return record->log_sums ? SL_OK : sli_no_memory(NULL, "the sums of %lld rows", (long long)rows);
}

/* The block's logits, to [rows, block->columns]. */
static sl_status compute_logits(const sli_split_head *part, const head_block *block,
                                const sl_tensor *in, float *logits)
{
    int64_t rows = sl_tensor_rows(in);
    SL_TRY(sli_device_gemm(sl_tensor_device(in),
                           &(sli_gemm){.transpose_b = true,
                                       .bf16 = is_bf16(part),
                                       .is_forward = true,
                                       .m = rows,
                                       .n = block->classes,
                                       .k = part->width,
                                       .a = sl_tensor_data(in),
                                       .lda = part->width,
                                       .b = element(part->weight, block->row * part->width),
                                       .ldb = part->width,
                                       .c = logits,
                                       .ldc = block->columns,
                                       .bias = part->bias ? sl_tensor_f32(part->bias) + block->row
                                                          : NULL}));
    for (int64_t row = 0; row < rows; row++)
        logits[row * block->columns + block->classes] = impossible;
    return SL_OK;
}

/* The target's place among the block's classes; -1: it has another block, or none. */
static int64_t target_in_block(const head_block *block, const sl_tensor *targets, int64_t row)
{
    int64_t target = sl_tensor_i32(targets)[row] - block->first;
    return target >= 0 && target < block->classes ? target : -1;
}

/* From the block's logits its softmax without the targets' classes, and its numbers. A row without
 * a loss has none, whatever its logits are. */
static sl_status compute_softmax(const head_block *block, const sli_split_head_record *record,
                                 float *logits, const forward_room *room, double *numbers)
{
    int64_t rows = sl_tensor_rows(record->in);
    bool rounds = room->logits;
    void *softmax = element(record->softmax, block->offset);
    for (int64_t row = 0; row < rows; row++) {
        int64_t target = target_in_block(block, record->targets, row);
        room->targets[row] = (int32_t)block->classes;
        numbers[row * SLI_HEAD_NODE_NUMBERS + SLI_HEAD_NODE_TARGET_LOGIT] =
            target < 0 ? 0 : (double)logits[row * block->columns + target];
    }
    SL_TRY(sli_device_cross_entropy(sl_tensor_device(record->in),
                                    &(sli_cross_entropy){.rows = rows,
                                                         .classes = block->classes + 1,
                                                         .ld = block->columns,
                                                         .logits = logits,
                                                         .targets = room->targets,
                                                         .ignore = -1,
                                                         .grad_scale = 1.0f,
                                                         .loss = room->losses,
                                                         .rounded = rounds ? softmax : NULL}));
    for (int64_t row = 0; row < rows; row++) {
        int64_t target = target_in_block(block, record->targets, row);
        bool is_ignored = sl_tensor_i32(record->targets)[row] < 0;
        double log_sum = is_ignored ? 0 : room->losses[row] + (double)impossible;
        numbers[row * SLI_HEAD_NODE_NUMBERS + SLI_HEAD_NODE_LOG_SUM] = log_sum;
        record->log_sums[block->index * rows + row] = log_sum;
        size_t bytes = element_bytes(rounds);
        char *start = (char *)softmax + (size_t)(row * block->columns) * bytes;
        if (is_ignored)
            memset(start, 0, (size_t)block->columns * bytes);
        else if (target >= 0)
            memset(start + (size_t)target * bytes, 0, bytes);
    }
    return SL_OK;
}

/* The block as a node, to `sums` and `numbers`. */
static sl_status run_block(const sli_split_head *part, const head_block *block,
                           const sli_split_head_record *record, const forward_room *room,
                           float *sums, double *numbers)
{
    void *softmax = element(record->softmax, block->offset);
    float *logits = room->logits ? sl_tensor_f32(room->logits) : softmax;
    SL_TRY(compute_logits(part, block, record->in, logits));
    SL_TRY(compute_softmax(block, record, logits, room, numbers));
    return sli_device_gemm(sl_tensor_device(record->in),
                           &(sli_gemm){.bf16 = is_bf16(part),
                                       .m = sl_tensor_rows(record->in),
                                       .n = part->width,
                                       .k = block->classes,
                                       .a = softmax,
                                       .lda = block->columns,
                                       .b = element(part->weight, block->row * part->width),
                                       .ldb = part->width,
                                       .c = sums,
                                       .ldc = part->width});
}

static sl_status run_blocks(const sli_split_head *part, const sli_split_head_record *record,
                            const forward_room *room, sli_head_nodes *stack)
{
    int64_t rows = stack->rows;
    for (int i = 0; i < SLI_SUM_TREE_MOST_NODES; i++) {
        stack->sums[i] = sl_tensor_f32(room->sums) + i * rows * part->width;
        stack->numbers[i] = room->numbers + i * rows * SLI_HEAD_NODE_NUMBERS;
    }
    for (head_block block = first_block(part); block.classes > 0;
         block = next_block(part, &block, rows)) {
        int number = part->first + block.index;
        SL_TRY(run_block(part, &block, record, room, stack->sums[stack->count],
                         stack->numbers[stack->count]));
        sli_head_nodes_push(stack, number, number + 1);
    }
    return SL_OK;
}

/* The weights of the rows' targets that the part has, in the order of rows, to `to` [targets, D].
 */
static void copy_target_weights(const sli_split_head *part, const sli_class_range *range,
                                const sl_tensor *targets, float *to)
{
    for (int64_t row = 0; row < sl_tensor_count(targets); row++) {
        int32_t target = sl_tensor_i32(targets)[row];
        if (!sli_class_range_has(range, target))
            continue;
        const void *weight = element(part->weight, (target - range->first) * part->width);
        if (is_bf16(part))
            sli_widen_bf16(weight, to, part->width);
        else
            memcpy(to, weight, (size_t)part->width * sizeof *to);
        to += part->width;
    }
}

static sl_status copy_nodes(const sli_split_head *part, const sli_head_nodes *stack,
                            const forward_room *room, const sl_tensor *targets, sl_device *device,
                            sl_tensor **sums, sl_tensor **numbers)
{
    sli_class_range range = sli_split_head_range(part);
    int64_t nodes = stack->count * stack->rows;
    sl_shape sums_shape = sl_shape_2d(nodes + sli_class_range_count(&range, targets), stack->width);
    sl_shape numbers_shape = sl_shape_2d(nodes, SLI_HEAD_NODE_NUMBERS);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &sums_shape, sums));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F64, &numbers_shape, numbers));
    memcpy(sl_tensor_data(*sums), sl_tensor_data(room->sums),
           (size_t)(nodes * stack->width) * sizeof(float));
    copy_target_weights(part, &range, targets, sl_tensor_f32(*sums) + nodes * stack->width);
    memcpy(sl_tensor_data(*numbers), room->numbers, sli_tensor_bytes(*numbers));
    return SL_OK;
}

sl_status sli_split_head_forward(const sli_split_head *part, const sl_tensor *in,
                                 const sl_tensor *targets, sli_split_head_record *record,
                                 sl_tensor **sums, sl_tensor **numbers)
{
    sl_device *device = sl_tensor_device(in);
    sli_head_nodes stack = {.blocks = part->blocks,
                            .rows = sl_tensor_rows(in),
                            .width = part->width};
    forward_room room = {0};
    *sums = *numbers = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(create_room(part, device, stack.rows, &room));
    SL_TRY_OR_FAIL(create_record(part, in, targets, record));
    SL_TRY_OR_FAIL(run_blocks(part, record, &room, &stack));
    status = copy_nodes(part, &stack, &room, targets, device, sums, numbers);

fail:
    room_clear(&room);
    if (status != SL_OK) {
        sli_split_head_clear(record);
        sl_tensor_destroy(sums);
        sl_tensor_destroy(numbers);
    }
    return status;
}

/* ---- Backward --------------------------------------------------------------------------- */

/* Memory of one backward, [rows] and [rows, D] in the data type of products. */
typedef struct backward_room {
    sl_tensor *weights, *scaled;
} backward_room;

static void store_row(const sl_tensor *source, int64_t row, float weight, const sl_tensor *target)
{
    int64_t width = sl_tensor_columns(source);
    const void *from = element(source, row * width);
    void *to = element(target, row * width);
    if (sl_tensor_dtype(source) == SL_BF16)
        for (int64_t i = 0; i < width; i++)
            ((uint16_t *)to)[i] =
                sli_bf16_from_f32(weight * sli_f32_from_bf16(((const uint16_t *)from)[i]));
    else
        for (int64_t i = 0; i < width; i++)
            ((float *)to)[i] = weight * ((const float *)from)[i];
}

/* x weighted by what the block's softmax is of the whole one. */
static void scale_rows(const sli_split_head_record *record, const head_block *block,
                       const double *results, const backward_room *room)
{
    int64_t rows = sl_tensor_rows(record->in);
    for (int64_t row = 0; row < rows; row++) {
        const double *result = results + row * SLI_SPLIT_HEAD_RESULTS;
        double log_sum = record->log_sums[block->index * rows + row];
        float weight =
            (float)(result[SLI_HEAD_ROW_WEIGHT] * exp(log_sum - result[SLI_HEAD_ROW_LOG_SUM]));
        store_row(record->in, row, weight, room->scaled);
        if (sl_tensor_dtype(room->weights) == SL_BF16)
            *(uint16_t *)element(room->weights, row) = sli_bf16_from_f32(weight);
        else
            *(float *)element(room->weights, row) = weight;
    }
}

/* grad [classes, n] = softmax^T b [rows, n] + beta grad. */
static sl_status add_product(const sli_split_head *part, const head_block *block,
                             const sli_split_head_record *record, const sl_tensor *b, int64_t n,
                             bool is_stale, float *grad)
{
    return sli_device_gemm(sl_tensor_device(record->in),
                           &(sli_gemm){.transpose_a = true,
                                       .bf16 = is_bf16(part),
                                       .m = block->classes,
                                       .n = n,
                                       .k = sl_tensor_rows(record->in),
                                       .a = element(record->softmax, block->offset),
                                       .lda = block->columns,
                                       .b = sl_tensor_data(b),
                                       .ldb = n,
                                       .beta = is_stale ? 0.0f : 1.0f,
                                       .c = grad,
                                       .ldc = n});
}

static sl_status backward_block(const sli_split_head *part, const head_block *block,
                                const sli_split_head_record *record, const double *results,
                                const backward_room *room)
{
    int64_t rows = sl_tensor_rows(record->in), width = part->width;
    float *grad = sl_tensor_f32(part->weight_grad) + block->row * width;
    float *bias = part->bias_grad ? sl_tensor_f32(part->bias_grad) + block->row : NULL;
    scale_rows(record, block, results, room);
    SL_TRY(add_product(part, block, record, room->scaled, width, part->weight_grad_is_stale, grad));
    if (bias)
        SL_TRY(add_product(part, block, record, room->weights, 1, part->bias_grad_is_stale, bias));
    for (int64_t row = 0; row < rows; row++) {
        int64_t target = target_in_block(block, record->targets, row);
        float weight = (float)results[row * SLI_SPLIT_HEAD_RESULTS + SLI_HEAD_ROW_TARGET_WEIGHT];
        if (target < 0 || weight == 0)
            continue;
        add_row(record->in, row, width, weight, grad + target * width);
        if (bias)
            bias[target] += weight;
    }
    return SL_OK;
}

sl_status sli_split_head_backward(sli_split_head *part, sli_split_head_record *record,
                                  const sl_tensor *result)
{
    sl_device *device = sl_tensor_device(record->in);
    sl_dtype dtype = sl_tensor_dtype(part->weight);
    int64_t rows = sl_tensor_rows(record->in);
    sl_shape weights = sl_shape_1d(rows), scaled = sl_shape_2d(rows, part->width);
    backward_room room = {0};
    sl_status status;
    SL_TRY_OR_FAIL(sl_tensor_create(device, SL_MEMORY_WORKSPACE, dtype, &weights, &room.weights));
    SL_TRY_OR_FAIL(sl_tensor_create(device, SL_MEMORY_WORKSPACE, dtype, &scaled, &room.scaled));
    for (head_block block = first_block(part); block.classes > 0;
         block = next_block(part, &block, rows))
        SL_TRY_OR_FAIL(backward_block(part, &block, record, sl_tensor_data(result), &room));
    part->weight_grad_is_stale = part->bias_grad_is_stale = false;

fail:
    sl_tensor_destroy(&room.weights);
    sl_tensor_destroy(&room.scaled);
    sli_split_head_clear(record);
    return status;
}
