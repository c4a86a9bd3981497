/* Vocabularies for tests. */
#ifndef TESTS_SUPPORT_VOCAB_H
#define TESTS_SUPPORT_VOCAB_H

#include "sluice/app/text.h"
#include "support/check.h"

#include <string.h>

/* Counts the words of a text that blanks separate. */
static inline sl_vocab_builder *count_words(const char *text)
{
    sl_vocab_builder *builder;
    check_ok(sl_vocab_builder_create(&builder));
    while (*text) {
        size_t bytes = strcspn(text, " ");
        check_ok(sl_vocab_builder_add(builder, text, bytes, NULL));
        text += bytes + (text[bytes] == ' ');
    }
    return builder;
}

static inline sl_vocab *vocab_of(const char *text)
{
    sl_vocab *vocab;
    sl_vocab_builder *builder = count_words(text);
    check_ok(sl_vocab_builder_finish(builder, NULL, &vocab));
    sl_vocab_builder_destroy(&builder);
    return vocab;
}

#endif
