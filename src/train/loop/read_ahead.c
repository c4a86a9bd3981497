/* Two blocks of rows take turns: the caller has one, and the thread fills the other. */
#include "train/loop/read_ahead.h"

#include "core/error.h"
#include "core/threads.h"

#include <stdlib.h>

struct sli_read_ahead {
    const sli_rows_task *task;
    sli_worker *worker;
    sli_row_block blocks[2];
    int block; /* that `asked` are gathered into */
    bool is_asked;
    sl_train_rows asked;
    sli_error_copy error; /* of gathering them */
};

sl_status sli_read_ahead_create(const sli_rows_task *task, sli_read_ahead **out)
{
    sli_read_ahead *ahead = *out = calloc(1, sizeof *ahead);
    if (!ahead)
        return sli_no_memory(NULL, "reading ahead");
    ahead->task = task;
    sl_status status = sli_worker_create(NULL, NULL, &ahead->worker);
    if (status != SL_OK)
        sli_read_ahead_destroy(out);
    return status;
}

void sli_read_ahead_destroy(sli_read_ahead **ahead)
{
    if (!*ahead)
        return;
    sli_worker_destroy(&(*ahead)->worker);
    for (int i = 0; i < 2; i++)
        sli_row_block_clear(&(*ahead)->blocks[i]);
    free(*ahead);
    *ahead = NULL;
}

static void gather(void *context)
{
    sli_read_ahead *ahead = context;
    sli_error_save(&ahead->error,
                   sli_rows_task_gather(ahead->task, &ahead->asked, &ahead->blocks[ahead->block]));
}

static void ask(sli_read_ahead *ahead, const sl_train_rows *rows)
{
    ahead->asked = *rows;
    ahead->is_asked = true;
    sli_worker_start(ahead->worker, gather, ahead);
}

static bool is_asked_for(const sli_read_ahead *ahead, const sl_train_rows *rows)
{
    const sl_train_rows *asked = &ahead->asked;
    return ahead->is_asked && rows->split == asked->split && rows->epoch == asked->epoch &&
           rows->batch == asked->batch && rows->batch_rows == asked->batch_rows &&
           rows->first == asked->first && rows->count == asked->count &&
           rows->shuffled == asked->shuffled && rows->seed == asked->seed;
}

sl_status sli_read_ahead_take(sli_read_ahead *ahead, const sl_train_rows *rows,
                              const sl_train_rows *next, const sli_row_block **block)
{
    sli_worker_wait(ahead->worker);
    if (!is_asked_for(ahead, rows)) {
        ask(ahead, rows);
        sli_worker_wait(ahead->worker);
    }
    ahead->is_asked = false;
    *block = &ahead->blocks[ahead->block];
    SL_TRY(sli_error_restore(&ahead->error));
    ahead->block = !ahead->block;
    if (next)
        ask(ahead, next);
    return SL_OK;
}
