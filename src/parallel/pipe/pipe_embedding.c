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

#include <stdlib.h>
#include <string.h>

enum { WEIGHT }; /* of a part's own */

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
    if (!pipe->head_is_cut || !pipe->embedding || !is_first_here(pipe))
        return SL_OK;
    sli_pipe_drop_words(pipe);
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
    if (!pipe->embedding || !is_first_here(pipe))
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

/* Copies the rows of the part's words from its own tensor, or to it. */
static void copy_rows(const sl_pipe *pipe, const sli_head_part *part, bool from_own, float *own,
                      float *rows)
{
    int64_t width = part->head.width, first_class = sli_split_head_range(&part->head).first;
    for (int64_t i = 0; i < part->word_count; i++) {
        float *of_own = own + (pipe->words[part->first_word + i] - first_class) * width;
        float *of_rows = rows + i * width;
        memcpy(from_own ? of_rows : of_own, from_own ? of_own : of_rows,
               (size_t)width * sizeof *rows);
    }
}

/* Sends the rows of the part's words from its own tensor to the first stage's process, or gets them
 * from there. */
static sl_status exchange_own(const sl_pipe *pipe, const sli_head_part *part, bool from_own,
                              float *own)
{
    int64_t count = part->word_count * part->head.width;
    int first = pipe->stages[0].group_rank;
    float *rows = malloc((size_t)count * sizeof *rows);
    if (!rows)
        return sli_no_memory("sl_pipe", "the rows of a batch's words");
    sl_status status;
    if (from_own) {
        copy_rows(pipe, part, true, own, rows);
        status = sli_pipe_group_send(pipe->group, rows, count, SL_F32, first);
    } else {
        status = sli_pipe_group_receive(pipe->group, rows, count, SL_F32, first);
        if (status == SL_OK)
            copy_rows(pipe, part, false, own, rows);
    }
    free(rows);
    return status;
}

/* The rows of a rank's words go from its part's own tensor into the table, or back. The process
 * has one of them at least. */
static sl_status move_rows(const sl_pipe *pipe, int rank, bool from_own, sl_tensor *own,
                           sl_tensor *table)
{
    const sli_head_part *part = &pipe->parts[rank];
    int64_t width = part->head.width, count = part->word_count * width;
    int other = pipe->ranks[rank].group_rank;
    if (count == 0)
        return SL_OK;
    if (!table)
        return exchange_own(pipe, part, from_own, sl_tensor_f32(own));
    float *rows = sl_tensor_f32(table) + part->first_word * width;
    if (own) {
        copy_rows(pipe, part, from_own, sl_tensor_f32(own), rows);
        return SL_OK;
    }
    return from_own ? sli_pipe_group_receive(pipe->group, rows, count, SL_F32, other)
                    : sli_pipe_group_send(pipe->group, rows, count, SL_F32, other);
}

/* What the first stage's process tells another one. */
typedef struct words_message {
    int64_t count; /* of the rank's words, which follow */
    int64_t adds;  /* their gradients begin as the rank's are */
} words_message;

enum { MESSAGE_WORDS = sizeof(words_message) / sizeof(int64_t) };

static sl_status receive_words(sl_pipe *pipe, sli_head_part *part, words_message *message)
{
    int first = pipe->stages[0].group_rank;
    SL_TRY(sli_pipe_group_receive(pipe->group, message, MESSAGE_WORDS, SL_I64, first));
    if (message->count == 0)
        return SL_OK;
    int64_t count = pipe->word_count + message->count;
    int32_t *words = realloc(pipe->words, (size_t)count * sizeof *words);
    if (!words)
        return sli_no_memory("sl_pipe", "the words of a batch");
    pipe->words = words;
    SL_TRY(sli_pipe_group_receive(pipe->group, words + pipe->word_count, message->count, SL_I32,
                                  first));
    part->first_word = pipe->word_count;
    part->word_count = message->count;
    pipe->word_count = count;
    return SL_OK;
}

static sl_status send_words(const sl_pipe *pipe, int rank, const words_message *message)
{
    const sli_head_part *part = &pipe->parts[rank];
    int other = pipe->ranks[rank].group_rank;
    SL_TRY(sli_pipe_group_send(pipe->group, message, MESSAGE_WORDS, SL_I64, other));
    return message->count > 0 ? sli_pipe_group_send(pipe->group, pipe->words + part->first_word,
                                                    message->count, SL_I32, other)
                              : SL_OK;
}

static sl_status fetch_of_rank(sl_pipe *pipe, int rank, bool adds)
{
    sli_head_part *part = &pipe->parts[rank];
    sl_parameter *own = &part->own[WEIGHT], *embedding = pipe->embedding;
    words_message message = {part->word_count, adds};
    bool is_here = pipe->ranks[rank].device;
    sl_tensor *grad = NULL;
    if (!is_here)
        SL_TRY(send_words(pipe, rank, &message));
    else if (!is_first_here(pipe))
        SL_TRY(receive_words(pipe, part, &message));
    SL_TRY(move_rows(pipe, rank, true, is_here ? own->value : NULL, embedding->value));
    if (!message.adds)
        return SL_OK;
    if (is_here)
        SL_TRY(sl_parameter_grad(own, &grad));
    return move_rows(pipe, rank, true, grad, embedding->grad);
}

/* Every process goes through the ranks in their order, so that messages find their receivers. */
sl_status sli_pipe_fetch_words(sl_pipe *pipe, const sli_step *step)
{
    bool is_first = is_first_here(pipe);
    int own_rank = sl_schedule_placement(pipe->order)[0];
    bool adds = step->backward && is_first && pipe->word_count > 0 &&
                !pipe->parts[own_rank].own[WEIGHT].grad_is_stale;
    if (!is_first)
        sli_pipe_drop_words(pipe);
    for (int i = 0; i < pipe->rank_count; i++)
        if (is_first || pipe->ranks[i].device)
            SL_TRY(fetch_of_rank(pipe, i, adds));
    if (is_first)
        pipe->embedding->grad_is_stale = !adds;
    return SL_OK;
}

static sl_status return_to_rank(const sl_pipe *pipe, int rank)
{
    sl_parameter *own = &pipe->parts[rank].own[WEIGHT], *embedding = pipe->embedding;
    int first = pipe->stages[0].group_rank, other = pipe->ranks[rank].group_rank;
    bool is_here = pipe->ranks[rank].device;
    int32_t has_any = !embedding->grad_is_stale;
    sl_tensor *grad = NULL;
    if (!is_here)
        SL_TRY(sli_pipe_group_send(pipe->group, &has_any, 1, SL_I32, other));
    else if (!is_first_here(pipe))
        SL_TRY(sli_pipe_group_receive(pipe->group, &has_any, 1, SL_I32, first));
    if (!has_any)
        return SL_OK;
    if (is_here)
        SL_TRY(sl_parameter_grad(own, &grad));
    return move_rows(pipe, rank, false, grad, embedding->grad);
}

sl_status sli_pipe_return_words(sl_pipe *pipe)
{
    for (int i = 0; i < pipe->rank_count; i++)
        if (is_first_here(pipe) || pipe->ranks[i].device)
            SL_TRY(return_to_rank(pipe, i));
    sli_pipe_drop_words(pipe);
    return SL_OK;
}
