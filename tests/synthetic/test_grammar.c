#include "synthetic/grammar.h"

#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sli_grammar *new_grammar(void)
{
    sli_grammar *grammar;
    check_ok(sli_grammar_create(&grammar));
    return grammar;
}

static void every_word_is_in_one_group_only(void **state)
{
    char words[1000][SLI_GRAMMAR_WORD_BYTES];
    int count = 0;
    (void)state;
    for (int group = 0; group < SLI_GRAMMAR_GROUPS; group++) {
        assert_true(sli_grammar_word_count(group) >= 1);
        for (int i = 0; i < sli_grammar_word_count(group); i++) {
            sli_grammar_word(group, i, words[count]);
            size_t length = strspn(words[count], "abcdefghijklmnopqrstuvwxyz");
            assert_true(group == SLI_GRAMMAR_FULL_STOP ? strcmp(words[count], ".") == 0
                                                       : length > 1 && !words[count][length]);
            assert_true(sli_grammar_word_weight(i) >= 1);
            for (int k = 0; k < count; k++)
                if (strcmp(words[k], words[count]) == 0)
                    fail_msg("\"%s\" is in two groups", words[k]);
            count++;
        }
    }
    assert_int_equal(count, 323);
}

static void words_determine_the_state(void **state)
{
    sli_grammar *grammar = new_grammar();
    (void)state;
    assert_true(grammar->state_count > 100);
    for (int s = 0; s < grammar->state_count; s++) {
        const sli_grammar_edge *edges = grammar->edges + grammar->first_edge[s];
        int count = grammar->first_edge[s + 1] - grammar->first_edge[s];
        uint64_t total = 0;
        assert_true(count >= 1);
        for (int i = 0; i < count; i++) {
            total += edges[i].weight;
            assert_true(edges[i].weight > 0);
            assert_true((edges[i].group == SLI_GRAMMAR_FULL_STOP) ==
                        (edges[i].next == SLI_GRAMMAR_START));
            for (int k = 0; k < i; k++)
                assert_int_not_equal(edges[i].group, edges[k].group);
        }
        assert_true(total <= UINT32_MAX);
    }
    sli_grammar_destroy(&grammar);
    sli_grammar_destroy(&grammar);
}

/* The most tokens from a state to the full stop. */
static int longest_from(const sli_grammar *grammar, int state, int depth)
{
    int longest = 0;
    assert_true(depth <= SLI_GRAMMAR_LONGEST);
    for (int e = grammar->first_edge[state]; e < grammar->first_edge[state + 1]; e++) {
        int next = grammar->edges[e].next;
        int length = next == SLI_GRAMMAR_START ? 1 : 1 + longest_from(grammar, next, depth + 1);
        longest = length > longest ? length : longest;
    }
    return longest;
}

static void longest_sentence_is_as_long_as_the_header_says(void **state)
{
    sli_grammar *grammar = new_grammar();
    (void)state;
    assert_int_equal(longest_from(grammar, SLI_GRAMMAR_START, 0), SLI_GRAMMAR_LONGEST);
    sli_grammar_destroy(&grammar);
}

static void two_state_source_has_its_textbook_entropy(void **state)
{
    /* START: "and" with 3/4, then the full stop; or the full stop at once with 1/4. Of the mean
     * length 7/4, 4/7 of the tokens are drawn at START, with the entropy of (3/4, 1/4), and the
     * others are certain. Both groups have one word. */
    int first_edge[] = {0, 2, 3};
    sli_grammar_edge edges[] = {{1, 1, 3}, {0, 0, 1}, {0, 0, 1}};
    sli_grammar grammar = {2, 3, first_edge, edges};
    double start = -0.75 * log(0.75) - 0.25 * log(0.25), rate, by_context[3];
    (void)state;
    assert_int_equal(sli_grammar_word_count(0), 1);
    assert_int_equal(sli_grammar_word_count(1), 1);
    check_ok(sli_grammar_entropy_rate(&grammar, &rate));
    assert_true(fabs(rate - 4.0 / 7 * start) < 1e-15);
    check_ok(sli_grammar_context_entropies(&grammar, by_context, 3));
    /* A token is "and" in 3 of 7. After any one token the state is known. */
    assert_true(fabs(by_context[0] + 3.0 / 7 * log(3.0 / 7) + 4.0 / 7 * log(4.0 / 7)) < 1e-15);
    assert_true(fabs(by_context[1] - rate) < 1e-15);
    assert_true(fabs(by_context[2] - rate) < 1e-15);
}

static void entropy_falls_to_the_rate_as_more_is_known(void **state)
{
    sli_grammar *grammar = new_grammar();
    double rate, by_context[SLI_GRAMMAR_LONGEST + 6];
    int count = sizeof by_context / sizeof *by_context;
    (void)state;
    check_ok(sli_grammar_entropy_rate(grammar, &rate));
    check_ok(sli_grammar_context_entropies(grammar, by_context, count));
    for (int t = 1; t < count; t++)
        assert_true(by_context[t] <= by_context[t - 1] + 1e-12);
    for (int t = SLI_GRAMMAR_LONGEST; t < count; t++)
        assert_true(fabs(by_context[t] - rate) < 1e-12);
    assert_true(by_context[1] - rate > 0.5); /* the last token alone says little */
    assert_true(by_context[3] - rate > 0.05);
    sli_grammar_destroy(&grammar);
}

int grammar_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word_is_in_one_group_only),
        cmocka_unit_test(words_determine_the_state),
        cmocka_unit_test(longest_sentence_is_as_long_as_the_header_says),
        cmocka_unit_test(two_state_source_has_its_textbook_entropy),
        cmocka_unit_test(entropy_falls_to_the_rate_as_more_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
