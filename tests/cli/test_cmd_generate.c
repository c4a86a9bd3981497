/* The program `sluice generate`, run as a user does on a small trained model. */
#include "sluice/app/text.h"
#include "support/program.h"
#include "text/vocab.h"

static int set_up(void **state)
{
    program_run trained;
    corpus_create_trained(state, &trained);
    return 0;
}

static void generate(void **state, program_run *run, const char *options)
{
    scratch *dir = *state;
    program_succeed(run, "generate --init %s/model --tokens 30 %s", dir->directory, options);
}

static int count_words(const char *text)
{
    int count = 0;
    for (; *text; text++)
        count += *text == ' ' || *text == '\n';
    return count;
}

static void seed_decides_the_text(void **state)
{
    program_run first, again, other;
    generate(state, &first, "--seed 7");
    generate(state, &again, "--seed 7");
    generate(state, &other, "--seed 8");
    assert_string_equal(first.out, again.out);
    assert_string_not_equal(first.out, other.out);
    assert_int_equal(count_words(first.out), 1 + 30); /* the prompt is "the" */
}

static void context_temperature_and_choice_change_the_text(void **state)
{
    static const char *const options[] = {"--context 1", "--temperature 0.2",
                                          "--top-k 2",   "--top-p 0.2",
                                          "--min-p 0.5", "--repetition-penalty 3"};
    program_run plain, other;
    generate(state, &plain, "");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        generate(state, &other, options[i]);
        assert_string_not_equal(other.out, plain.out);
    }
}

static void greedy_is_the_best_of_one(void **state)
{
    program_run greedy, best, cold;
    generate(state, &greedy, "--greedy");
    generate(state, &best, "--top-k 1 --seed 3");
    generate(state, &cold, "--temperature 0");
    assert_string_equal(greedy.out, best.out);
    assert_string_equal(greedy.out, cold.out);
}

static void text_begins_with_the_prompt(void **state)
{
    program_run run;
    generate(state, &run, "--prompt Riders$often");
    assert_memory_equal(run.out, "riders ", 7);
    assert_int_equal(count_words(run.out), 2 + 30);
}

/* Each that is not empty, as by itself, in their order. */
static void line_of_a_file_is_a_prompt(void **state)
{
    static const char *const options[] = {"", "--batch-size 1", "--batch-size 2",
                                          "--devices cpu:0,cpu:1"};
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run all, first, second, third;
    char blocks[3 * sizeof first.out];
    write_file(scratch_path(dir, "prompts"), "\nthe\r\n\r\nRiders often\nthe the the", 32);
    program_succeed(&first, "generate --init %s/model --prompt the", at);
    program_succeed(&second, "generate --init %s/model --prompt Riders$often", at);
    program_succeed(&third, "generate --init %s/model --prompt the$the$the", at);
    snprintf(blocks, sizeof blocks, "%s\n%s\n%s", first.out, second.out, third.out);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        program_succeed(&all, "generate --init %s/model --prompts %s/prompts %s", at, at,
                        options[i]);
        assert_string_equal(all.out, blocks);
    }
}

static void prompts_that_cannot_be_read_are_refused(void **state)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run run;
    write_file(scratch_path(dir, "prompts"), " \n\"\"\n", 5);
    program_start(&run, "generate --init %s/model --prompts %s/prompts", at, at);
    check_refused(&run, 1, "/prompts: line 2: a prompt must have at least one token, got ");
    write_file(scratch_path(dir, "prompts"), "the\nthe\0 end\n", 13);
    program_start(&run, "generate --init %s/model --prompts %s/prompts", at, at);
    check_refused(&run, 1, "/prompts: line 2: it has a zero byte, which is no text\n");
    write_file(scratch_path(dir, "prompts"), "\n \t\r\n", 5);
    program_start(&run, "generate --init %s/model --prompts %s/prompts", at, at);
    check_refused(&run, 1, "/prompts: expected a prompt on each line, but there is none\n");
    program_start(&run, "generate --init %s/model --prompts %s/none", at, at);
    check_refused(&run, 1, "/none: cannot be opened");
    program_start(&run, "generate --init %s/model --prompts %s", at, at);
    check_refused(&run, 1, ": Is a directory\n");
    program_start(&run, "generate --init %s/model --json", at);
    check_refused(&run, 2, "--json needs --prompts FILE\n");
}

/* A line with what was added to its prompt. */
static void json_lines_are_prompts_and_texts(void **state)
{
    static const struct {
        const char *line, *reason;
    } bad[] = {
        {"[1]", "line 1: it must be a JSON object\n"},
        {"{\"prompt\": \"the\"", "line 1: it is no JSON: column 16: "},
        {"{\"prompt\": \"the\", \"prompt\": \"a\"}", "line 1: it is no JSON: column "},
        {"{\"id\": \"the\"}", "line 1: it must have \"prompt\" or \"messages\"\n"},
        {"{\"prompt\": \"the\", \"messages\": []}",
         "line 1: it must have one of \"prompt\" and \"messages\", not both\n"},
        {"{\"prompt\": \"the\", \"text\": \"a\"}",
         "line 1: it has a \"text\", the name of what --json adds\n"},
        {"{\"prompt\": 5}", "line 1: \"prompt\" must be a text"},
        {"{\"prompt\": \"\"}", "line 1: a prompt must have at least one token"},
        {"{\"messages\": []}", "line 1: \"messages\" must be a list that is not empty"},
        {"{\"messages\": [{\"role\": \"user\"}]}",
         "line 1: message 1 must have a \"role\" and a \"content\", texts"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"the\"}]}",
         "line 1: a conversation must not end with what the assistant says"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"the\"}]}",
         "line 1: the tokenizer has no chat_template"},
    };
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run run, alone;
    char expected[2 * sizeof alone.out];
    program_succeed(&alone, "generate --init %s/model --prompt the --tokens 9", at);
    alone.out[strlen(alone.out) - 1] = '\0';
    snprintf(expected, sizeof expected, "{\"id\": 0.1, \"prompt\": \"the\", \"text\": \"%s\"}\n",
             alone.out + strlen("the"));
    write_file(scratch_path(dir, "p.jsonl"), "  {\"id\": 0.1, \"prompt\": \"the\"} \n", 32);
    program_succeed(&run, "generate --init %s/model --prompts %s/p.jsonl --json --tokens 9", at,
                    at);
    assert_string_equal(run.out, expected);
    write_file(scratch_path(dir, "prompts"), "the\n", 4);
    program_succeed(&run, "generate --init %s/model --prompts %s/prompts --json --tokens 9", at,
                    at);
    assert_string_equal(run.out + 1, expected + strlen("{\"id\": 0.1, "));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(scratch_path(dir, "p.jsonl"), bad[i].line, strlen(bad[i].line));
        program_start(&run, "generate --init %s/model --prompts %s/p.jsonl --json", at, at);
        check_refused(&run, 1, bad[i].reason);
    }
}

/* The text of the same ids is what --prompt gives. */
static void ids_are_generated_from_ids(void **state)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    SCOPED(sl_vocab) *vocab = NULL;
    program_run text, ids;
    char away[512], words[4096];
    int count = 0;
    check_ok(sl_vocab_open(scratch_path(dir, "model/tokenizer.json"), NULL, &vocab));
    program_succeed(&text, "generate --init %s/model --tokens 9 --prompt the$the", at);
    snprintf(away, sizeof away, "%s/away", at);
    assert_int_equal(rename(scratch_path(dir, "model/tokenizer.json"), away), 0);
    int32_t the = sl_vocab_id(vocab, "the", 3);
    program_start(&ids, "generate --init %s/model --tokens 9 --prompt-ids %d,%d", at, the, the);
    assert_int_equal(rename(away, scratch_path(dir, "model/tokenizer.json")), 0);
    assert_int_equal(ids.status, 0);
    size_t used = 0;
    for (char *end, *next = ids.out; *next && *next != '\n'; next = end, count++) {
        long id = strtol(next, &end, 10);
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", count ? " " : "",
                                 sl_vocab_token(vocab, (int32_t)id).text);
    }
    snprintf(words + used, sizeof words - used, "\n");
    assert_int_equal(count, 11);
    assert_string_equal(words, text.out);
}

static void ids_of_a_prompt_are_checked(void **state)
{
    static const char *const lists[] = {"x", "1,", ",1", "1,,2", "-1", "1;2", "1,2x"};
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run run;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        program_start(&run, "generate --init %s/model --prompt-ids %s", at, lists[i]);
        check_refused(&run, 1, "--prompt-ids must be ids separated by commas, such as 504,1463");
    }
    program_start(&run, "generate --init %s/model --prompt-ids 1,99999999999999999999", at);
    check_refused(&run, 1,
                  "--prompt-ids: id 99999999999999999999, number 2 of the list, is not in");
    program_start(&run, "generate --init %s/model --prompt-ids 1 --prompt the", at);
    check_refused(&run, 2, "it cannot be combined with --prompt\n");
}

static void what_cannot_be_generated_is_refused(void **state)
{
    scratch *dir = *state;
    program_run run;
    const char *at = dir->directory;
    program_start(&run, "generate");
    check_refused(&run, 2, "generate needs --init DIR\n");
    program_start(&run, "generate --init %s/none", at);
    check_refused(&run, 1, "/none: cannot be opened");
    program_start(&run, "generate --init %s/model --tokens 0", at);
    check_refused(&run, 2, "--tokens must be a whole number from 1 to 1000000, got \"0\"\n");
    program_start(&run, "generate --init %s/model --temperature -1", at);
    check_refused(&run, 2, "--temperature must be a number from 0, got \"-1\"\n");
    program_start(&run, "generate --init %s/model --context 5001", at);
    check_refused(&run, 2, "--context must be at most 5000, the model's positions, got 5001\n");
    program_start(&run, "generate --init %s/model --top-k x", at);
    check_refused(&run, 2, "--top-k must be a whole number from 0, got \"x\"\n");
    program_start(&run, "generate --init %s/model --top-p 1.1", at);
    check_refused(&run, 2, "--top-p must be a number from 0 to 1, got \"1.1\"\n");
    program_start(&run, "generate --init %s/model --chat hi --prompts x", at);
    check_refused(&run, 2, "--chat is a prompt, so it cannot be combined with --prompts\n");
    program_start(&run, "generate --init %s/model --chat hi", at);
    check_refused(&run, 1, "the tokenizer has no chat_template");
    program_start(&run, "generate --init %s/model --prompt ''", at);
    check_refused(&run, 2, "sluice: --prompt must not be empty\n");
    program_start(&run, "generate --init %s/model --devices gpu", at);
    check_refused(&run, 1,
                  "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST; "
                  "cuda:NUMBER or cuda:NUMBER/NUMBER, got \"gpu\"\n");
    program_start(&run, "generate --init ''");
    check_refused(&run, 2, "--init must not be empty\n");
    program_start(&run, "generate --greedy --init %s/model --temperature 2", at);
    check_refused(
        &run, 2, "--greedy draws no random numbers, so it cannot be combined with --temperature\n");
    program_start(&run, "generate --top-k 3 --greedy --init %s/model", at);
    check_refused(&run, 2, "so it cannot be combined with --top-k\n");
    program_start(&run, "generate --greedy --init %s/model --seed 5", at);
    check_refused(&run, 2, "so it cannot be combined with --seed\n");
}

int cmd_generate_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_decides_the_text),
        cmocka_unit_test(context_temperature_and_choice_change_the_text),
        cmocka_unit_test(greedy_is_the_best_of_one),
        cmocka_unit_test(text_begins_with_the_prompt),
        cmocka_unit_test(line_of_a_file_is_a_prompt),
        cmocka_unit_test(prompts_that_cannot_be_read_are_refused),
        cmocka_unit_test(json_lines_are_prompts_and_texts),
        cmocka_unit_test(ids_are_generated_from_ids),
        cmocka_unit_test(ids_of_a_prompt_are_checked),
        cmocka_unit_test(what_cannot_be_generated_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
