/* The words of a batch, where the embedding is cut with the head that is tied to it
 * (pipe_head_values.c): each rank owns the rows of its words, and the first stage has a table of
 * those that the batch names, in ascending order.
 *
 *     first stage's process                     every other process
 *     words of the batch  ────── which ───────▶
 *     table               ◀───── rows ─────────  of its ranks' values
 *       the batch, whose ids are the words' numbers in the table
 *     table's gradient    ────── rows ────────▶  into its ranks' gradients
 *
 * The bits are those of a whole embedding: where the batch adds to another one's gradients, the
 * table's begins with the ranks' rows, and it replaces them. */
#include "parallel/pipe/pipe_head.h"

#include "core/error.h"
#include "nn/module.h"
#include "parallel/pipe/pipe.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool is_first_here(const sl_pipe *pipe)
{
    return pipe->stages[0].is_here;
}

/* ---- Which words ------------------------------------------------------------------------ */

static int compare_words(const void *a, const void *b)
{
    int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    return (first > second) - (first < second);
}

/* Sorts the ids, and leaves one of each word. Returns their number. */
static int64_t leave_distinct(int32_t *ids, int64_t count)
{
    int64_t kept = 0;
    qsort(ids, (size_t)count, sizeof *ids, compare_words);
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || ids[i] != ids[i - 1])
            ids[kept++] = ids[i];
    return kept;
}

/* What is no word stays an id, which the embedding refuses. */
static int64_t leave_words(int32_t *ids, int64_t count, int64_t classes)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < classes)
            ids[kept++] = ids[i];
    return kept;
}

/* How many words come before `word`. */
static int64_t count_before(const sl_pipe *pipe, int64_t word)
{
    int64_t low = 0, high = pipe->word_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (pipe->words[middle] < word)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static sl_status create_table(const sl_pipe *pipe, int64_t rows, bool has_gradients)
{
    sl_parameter *embedding = pipe->embedding;
    sl_device *device = pipe->stages[0].device;
    const sl_shape shape = sl_shape_2d(rows, embedding->shape.size[1]);
    embedding->grad_is_stale = true;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, SL_F32, &shape, &embedding->value));
    return has_gradients
               ? sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &shape, &embedding->grad)
               : SL_OK;
}

static sl_status list_words(sl_pipe *pipe, const sl_tensor *ids, bool has_gradients)
{
    int64_t count = sl_tensor_count(ids), classes = pipe->embedding->shape.size[0];
    pipe->words = malloc(sli_tensor_bytes(ids) + 1);
    if (!pipe->words)
        return sli_no_memory("sl_pipe", "the words of a batch");
    SL_TRY(sl_tensor_read(ids, pipe->words));
    pipe->word_count = leave_distinct(pipe->words, leave_words(pipe->words, count, classes));
    for (int i = 0; i < pipe->rank_count; i++) {
        sli_class_range range = sli_split_head_range(&pipe->parts[i].head);
        pipe->parts[i].first_word = count_before(pipe, range.first);
        pipe->parts[i].word_count = count_before(pipe, range.end) - pipe->parts[i].first_word;
    }
    return create_table(pipe, count < classes ? count : classes, has_gradients);
}

sl_status sli_pipe_list_words(sl_pipe *pipe, const sl_tensor *ids, bool has_gradients)
{
    if (!pipe->head_is_cut || !pipe->embedding)
        return SL_OK;
    if (sl_tensor_dtype(ids) != SL_I32 || sl_tensor_count(ids) == 0)
        return SL_OK; /* the embedding refuses them */
    sl_status status = list_words(pipe, ids, has_gradients);
    if (status != SL_OK)
        sli_pipe_drop_words(pipe);
    return status;
}

void sli_pipe_drop_words(sl_pipe *pipe)
{
    free(pipe->words);
    pipe->words = NULL;
    pipe->word_count = 0;
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++)
        pipe->parts[i].word_count = 0;
    if (!pipe->head_is_cut || !pipe->embedding || !is_first_here(pipe))
        return;
    sl_tensor_destroy(&pipe->embedding->value);
    sl_tensor_destroy(&pipe->embedding->grad);
}

sl_status sli_pipe_number_words(const sl_pipe *pipe, sl_tensor **ids)
{
    sl_tensor *numbers;
    if (pipe->word_count == 0)
        return SL_OK;
    SL_TRY(sl_tensor_create(sl_tensor_device(*ids), SL_MEMORY_WORKSPACE, SL_I32,
                            sl_tensor_shape(*ids), &numbers));
    const int32_t *words = sl_tensor_i32(*ids);
    int32_t *out = sl_tensor_data(numbers);
    for (int64_t i = 0; i < sl_tensor_count(*ids); i++) {
        int64_t number = count_before(pipe, words[i]);
        bool is_word = number < pipe->word_count && pipe->words[number] == words[i];
        out[i] = is_word ? (int32_t)number : words[i];
    }
    sl_tensor_destroy(ids);
    *ids = numbers;
    return SL_OK;
}

/* ---- Rows ------------------------------------------------------------------------------- */

enum { ROWS_AT_ONCE = 256 }; /* in a message to or from a part's own tensor */

/* Rows of the part's words from its own tensor, or to it: `count` from number `first` on. */
static void copy_rows(const sl_pipe *pipe, const sli_head_part *part, int64_t first, int64_t count,
                      bool from_own, float *own, float *rows)
{
    int64_t width = part->head.width, first_class = sli_split_head_range(&part->head).first;
    for (int64_t i = 0; i < count; i++) {
        int64_t word = pipe->words[part->first_word + first + i];
        float *of_own = own + (word - first_class) * width, *of_rows = rows + i * width;
        memcpy(from_own ? of_rows : of_own, from_own ? of_own : of_rows,
               (size_t)width * sizeof *rows);
    }
}

/* In a process without the first stage: between the part's own tensor and that stage's table. */
static sl_status exchange_own(const sl_pipe *pipe, const sli_head_part *part, int64_t first,
                              int64_t count, bool from_own, float *own, float *room)
{
    int other = pipe->stages[0].group_rank;
    int64_t elements = count * part->head.width;
    if (from_own) {
        copy_rows(pipe, part, first, count, true, own, room);
        return sli_pipe_group_send(pipe->group, room, elements, SL_F32, other);
    }
    SL_TRY(sli_pipe_group_receive(pipe->group, room, elements, SL_F32, other));
    copy_rows(pipe, part, first, count, false, own, room);
    return SL_OK;
}

static sl_status exchange_all_own(const sl_pipe *pipe, const sli_head_part *part, bool from_own,
                                  float *own)
{
    float *room = malloc((size_t)(ROWS_AT_ONCE * part->head.width) * sizeof *room);
    sl_status status = room ? SL_OK : sli_no_memory("sl_pipe", "rows of a batch's words");
    for (int64_t i = 0; i < part->word_count && status == SL_OK; i += ROWS_AT_ONCE) {
        int64_t left = part->word_count - i;
        status = exchange_own(pipe, part, i, left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE, from_own,
                              own, room);
    }
    free(room);
    return status;
}

/* In the process of the first stage: between its table and another process's part. */
static sl_status exchange_table(const sl_pipe *pipe, int rank, bool from_own, float *table)
{
    const sli_head_part *part = &pipe->parts[rank];
    int64_t width = part->head.width;
    int other = pipe->ranks[rank].group_rank;
    for (int64_t i = 0; i < part->word_count; i += ROWS_AT_ONCE) {
        int64_t left = part->word_count - i;
        int64_t elements = (left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE) * width;
        float *rows = table + (part->first_word + i) * width;
        SL_TRY(from_own ? sli_pipe_group_receive(pipe->group, rows, elements, SL_F32, other)
                        : sli_pipe_group_send(pipe->group, rows, elements, SL_F32, other));
    }
    return SL_OK;
}

/* The rows of a rank's words go from its part's own tensor into the table, or back. A tensor that
 * another process has is NULL. */
static sl_status move_rows(const sl_pipe *pipe, int rank, bool from_own, sl_tensor *own,
                           sl_tensor *table)
{
    const sli_head_part *part = &pipe->parts[rank];
    if (part->word_count == 0)
        return SL_OK;
    if (!is_first_here(pipe))
        return exchange_all_own(pipe, part, from_own, sl_tensor_f32(own));
    if (!pipe->ranks[rank].device)
        return exchange_table(pipe, rank, from_own, sl_tensor_f32(table));
    copy_rows(pipe, part, 0, part->word_count, from_own, sl_tensor_f32(own),
              sl_tensor_f32(table) + part->first_word * part->head.width);
    return SL_OK;
}

/* ---- Between processes ------------------------------------------------------------------ */

static sl_status receive_words(sl_pipe *pipe, sli_head_part *part)
{
    int first = pipe->stages[0].group_rank;
    SL_TRY(sli_pipe_group_receive(pipe->group, &part->word_count, 1, SL_I64, first));
    if (part->word_count == 0)
        return SL_OK;
    int64_t count = pipe->word_count + part->word_count;
    int32_t *words = realloc(pipe->words, (size_t)count * sizeof *words);
    if (!words)
        return sli_no_memory("sl_pipe", "the words of a batch");
    pipe->words = words;
    part->first_word = pipe->word_count;
    pipe->word_count = count;
    return sli_pipe_group_receive(pipe->group, words + part->first_word, part->word_count, SL_I32,
                                  first);
}

static sl_status send_words(const sl_pipe *pipe, int rank)
{
    const sli_head_part *part = &pipe->parts[rank];
    int other = pipe->ranks[rank].group_rank;
    SL_TRY(sli_pipe_group_send(pipe->group, &part->word_count, 1, SL_I64, other));
    if (part->word_count == 0)
        return SL_OK;
    return sli_pipe_group_send(pipe->group, pipe->words + part->first_word, part->word_count,
                               SL_I32, other);
}

/* Does the batch add to gradients that the rank has? Its process knows, and tells the first
 * stage's. */
static sl_status find_whether_it_adds(const sl_pipe *pipe, int rank, bool backward, bool *adds)
{
    bool is_here = pipe->ranks[rank].device;
    int32_t flag = is_here && backward && !pipe->parts[rank].own[SLI_HEAD_WEIGHT].grad_is_stale;
    if (!is_here)
        SL_TRY(sli_pipe_group_receive(pipe->group, &flag, 1, SL_I32, pipe->ranks[rank].group_rank));
    else if (!is_first_here(pipe))
        SL_TRY(sli_pipe_group_send(pipe->group, &flag, 1, SL_I32, pipe->stages[0].group_rank));
    *adds = flag;
    return SL_OK;
}

static sl_status fetch_of_rank(sl_pipe *pipe, int rank, bool backward)
{
    sli_head_part *part = &pipe->parts[rank];
    sl_parameter *rows = &part->own[SLI_HEAD_WEIGHT], *embedding = pipe->embedding;
    sl_tensor *grad;
    bool adds;
    if (!pipe->ranks[rank].device)
        SL_TRY(send_words(pipe, rank));
    else if (!is_first_here(pipe))
        SL_TRY(receive_words(pipe, part));
    if (part->word_count == 0)
        return SL_OK;
    SL_TRY(move_rows(pipe, rank, true, rows->value, embedding->value));
    SL_TRY(find_whether_it_adds(pipe, rank, backward, &adds));
    if (!adds)
        return SL_OK;
    if (is_first_here(pipe))
        SL_TRY(sl_parameter_grad(embedding, &grad)); /* zeros for ranks that have none */
    return move_rows(pipe, rank, true, rows->grad, embedding->grad);
}

/* Every process goes through the ranks in their order, so that messages find their receivers. */
sl_status sli_pipe_fetch_words(sl_pipe *pipe, const sli_step *step)
{
    for (int i = 0; i < pipe->rank_count; i++)
        if (is_first_here(pipe) || pipe->ranks[i].device)
            SL_TRY(fetch_of_rank(pipe, i, step->backward));
    return SL_OK;
}

static sl_status return_to_rank(const sl_pipe *pipe, int rank)
{
    sl_parameter *rows = &pipe->parts[rank].own[SLI_HEAD_WEIGHT];
    sl_tensor *grad;
    if (pipe->ranks[rank].device)
        SL_TRY(sl_parameter_grad(rows, &grad));
    return move_rows(pipe, rank, false, rows->grad, pipe->embedding->grad);
}

sl_status sli_pipe_return_words(sl_pipe *pipe)
{
    sl_status status = SL_OK;
    assert(!is_first_here(pipe) || !pipe->embedding->grad_is_stale);
    for (int i = 0; i < pipe->rank_count && status == SL_OK; i++)
        if (is_first_here(pipe) || pipe->ranks[i].device)
            status = return_to_rank(pipe, i);
    sli_pipe_drop_words(pipe);
    return status;
}
