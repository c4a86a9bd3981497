#include "cli/warnings.h"

#include "cli/arguments.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_warn_chunks(const sl_train_options *options, int replicas)
{
    int64_t rows = (options->batch_size * options->shards + replicas - 1) / replicas;
    if (options->chunks > rows)
        cli_complain("warning: --chunks is %d, but a batch has %" PRId64
                     " row%s: it is cut into as many micro-batches",
                     options->chunks, rows, rows == 1 ? "" : "s");
}

void cli_warn_unknown_text(const sl_tokens *tokens, const char *path, const char *vocabulary)
{
    int64_t unknown = 0;
    for (int64_t i = 0; i < tokens->count; i++)
        unknown += tokens->ids[i] == SL_VOCAB_UNKNOWN;
    if (2 * unknown > tokens->count)
        cli_complain("warning: %.0f%% of the tokens in %s are <unk>: the vocabulary %s does not "
                     "have them",
                     100.0 * (double)unknown / (double)tokens->count, path, vocabulary);
}

void cli_warn_unknown_corpus(const sl_corpus *corpus, const char *init)
{
    char *beside = NULL;
    if (init && sl_weights_vocab_path(init, &beside) != SL_OK)
        return;
    for (int split = 0; split < SL_SPLITS; split++) {
        char of_text[4096];
        snprintf(of_text, sizeof of_text, "of %s", sl_corpus_path(corpus, SL_SPLIT_TRAIN));
        cli_warn_unknown_text(sl_corpus_tokens(corpus, (sl_split)split),
                              sl_corpus_path(corpus, (sl_split)split), beside ? beside : of_text);
    }
    free(beside);
}

sl_status cli_warn_unknown_words(const sl_vocab *vocab, const char *prompt)
{
    sl_tokenizer *tokenizer;
    sl_token token;
    char words[512] = "";
    SL_TRY(sl_tokenizer_create(&tokenizer));
    sl_status status = sl_tokenizer_start(tokenizer, prompt, strlen(prompt));
    const sl_token unknown = sl_vocab_token(vocab, SL_VOCAB_UNKNOWN);
    while (status == SL_OK && sl_tokenizer_next(tokenizer, &token)) {
        size_t used = strlen(words);
        bool asked_for =
            token.bytes == unknown.bytes && memcmp(token.text, unknown.text, unknown.bytes) == 0;
        if (!asked_for && sl_vocab_id(vocab, token.text, token.bytes) == SL_VOCAB_UNKNOWN &&
            used + token.bytes + sizeof ", \"\"" < sizeof words)
            snprintf(words + used, sizeof words - used, "%s\"%.*s\"", used ? ", " : "",
                     (int)token.bytes, token.text);
    }
    sl_tokenizer_destroy(&tokenizer);
    if (words[0])
        cli_complain("warning: the vocabulary does not have these words of --prompt, which the "
                     "model sees as <unk>: %s",
                     words);
    return status;
}
