/* What the model says while it is trained. */
#include "train/loop/sample.h"

#include "core/error.h"
#include "models/family.h"
#include "sluice/app/inference.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOKENS = 50 };

struct sli_sampler {
    sl_generate_options options;
    int64_t length, most; /* tokens of the prompt, and of what is added */
    int32_t *ids;         /* [length + most], which begin with the prompt */
};

/* ---- The prompt ------------------------------------------------------------------------- */

static sl_status find_vocab(const sli_run *run, const sl_vocab **out)
{
    static const char needs[] = "sample-prompt needs a tokenizer (--tokenizer)";
    *out = sli_run_vocab(run);
    if (*out)
        return SL_OK;
    return run->init ? sl_error_context(sl_saved_model_need_vocab(run->init, out), "%s: ", needs)
                     : sl_error(SL_ERR_NOT_FOUND, "%s: the data have ids alone", needs);
}

/* Rank 0's: what the model begins with, and at which tokens it ends. */
static sl_status encode_prompt(const sli_run *run, sl_tokens *prompt, sl_generate_options *options)
{
    const char *text = run->options->sample_prompt;
    const sl_vocab *vocab;
    SL_TRY(find_vocab(run, &vocab));
    SL_TRY(sl_tokens_encode(vocab, text, strlen(text), true, prompt));
    if (prompt->count == 0)
        return sl_error(SL_ERR_INVALID, "sample-prompt must have at least one token, got \"%s\"",
                        text);
    options->never = sl_vocab_has_words(vocab) ? SL_VOCAB_UNKNOWN : -1;
    options->end = sl_vocab_end(vocab);
    return SL_OK;
}

/* The ranks of a pipe go on with the same prompt. */
static sl_status share_prompt(sl_group *group, const sl_tokens *prompt, sli_sampler *sampler)
{
    int64_t numbers[] = {prompt->count, sampler->options.never, sampler->options.end};
    if (group)
        SL_TRY(sl_group_broadcast(group, numbers, 3, SL_I64, 0, NULL));
    sampler->length = numbers[0];
    sampler->options.never = (int32_t)numbers[1];
    sampler->options.end = (int32_t)numbers[2];
    sampler->options.stops = sampler->options.end >= 0;
    sampler->ids = calloc((size_t)(sampler->length + sampler->most), sizeof *sampler->ids);
    if (!sampler->ids)
        return sli_no_memory(NULL, "a text of %" PRId64 " tokens", sampler->length + sampler->most);
    if (prompt->count > 0)
        memcpy(sampler->ids, prompt->ids, (size_t)prompt->count * sizeof *sampler->ids);
    return group ? sl_group_broadcast(group, sampler->ids, sampler->length, SL_I32, 0, NULL)
                 : SL_OK;
}

static sl_status make_sampler(const sli_run *run, sli_sampler *sampler)
{
    const sl_train_options *options = run->options;
    const sl_model_options *model = &options->model;
    bool is_tutorials = model->family == SL_FAMILY_TUTORIALS;
    sl_tokens prompt = {0};
    sampler->options =
        (sl_generate_options){.context = is_tutorials ? model->context : sli_decoder_context(model),
                              .temperature = 1,
                              .seed = options->seed};
    sampler->most = options->sample_tokens > 0 ? options->sample_tokens : DEFAULT_TOKENS;
    sl_status status;
    if (run->replica.rank == 0)
        SL_TRY_OR_FAIL(encode_prompt(run, &prompt, &sampler->options));
    status = share_prompt(run->replica.pipe_group, &prompt, sampler);
fail:
    sl_tokens_free(&prompt);
    return status;
}

sl_status sli_sampler_create(const sli_run *run, sli_sampler **out)
{
    *out = NULL;
    if (run->options->sample_every == 0 || run->replica.index > 0)
        return SL_OK;
    *out = calloc(1, sizeof **out);
    sl_status status = *out ? make_sampler(run, *out) : sli_no_memory(NULL, "samples");
    if (status != SL_OK)
        sli_sampler_destroy(out);
    return status;
}

void sli_sampler_destroy(sli_sampler **sampler)
{
    if (!*sampler)
        return;
    free((*sampler)->ids);
    free(*sampler);
    *sampler = NULL;
}

/* ---- A sample --------------------------------------------------------------------------- */

/* The text of ids but for special tokens, and without zeros; to be freed. */
static sl_status decode(const sl_vocab *vocab, const int32_t *ids, int64_t count, char **text)
{
    int32_t *shown = malloc((size_t)(count + 1) * sizeof *shown);
    int64_t kept = 0;
    size_t bytes = 0;
    *text = NULL;
    if (!shown)
        return sli_no_memory(NULL, "a text of %" PRId64 " tokens", count);
    for (int64_t i = 0; i < count; i++)
        if (!sl_vocab_is_special(vocab, ids[i]))
            shown[kept++] = ids[i];
    sl_status status = sl_tokens_decode(vocab, shown, kept, text, &bytes);
    for (size_t i = 0; status == SL_OK && i < bytes; i++)
        if ((*text)[i] == '\0')
            (*text)[i] = ' ';
    free(shown);
    return status;
}

static sl_status report_sample(const sli_run *run, int64_t length, const char *reason)
{
    const sl_vocab *vocab;
    char *text = NULL;
    SL_TRY(find_vocab(run, &vocab));
    if (!reason)
        SL_TRY(decode(vocab, run->sampler->ids, length, &text));
    const sl_sample_info sample = {.epoch = run->position.epoch + 1,
                                   .step = run->position.steps,
                                   .prompt = run->options->sample_prompt,
                                   .text = text,
                                   .reason = reason};
    sl_status status = SL_OK;
    for (int i = 0; i < run->reporter_count && status == SL_OK; i++) {
        const sl_reporter *reporter = &run->reporters[i];
        if (reporter->rank == run->replica.rank && reporter->sampled)
            status = reporter->sampled(reporter->context, &sample);
    }
    free(text);
    return status;
}

sl_status sli_run_sample(const sli_run *run)
{
    sli_sampler *sampler = run->sampler;
    sli_error_copy error;
    if (!sampler || run->position.steps % run->options->sample_every != 0)
        return SL_OK;
    int64_t length = sampler->length;
    sl_status status = sli_error_save(&error, sl_generate(run->replica.pipe, &sampler->options,
                                                          sampler->ids, &length, sampler->most));
    if (status != SL_OK && status != SL_ERR_NUMERIC)
        return sli_error_restore(&error);
    return run->replica.rank == 0 ? report_sample(run, length, status == SL_OK ? NULL : error.text)
                                  : SL_OK;
}
