/* The program `sluice generate`, run as a user does. */
#include "cli/corpus.h"

static program_run trained;

static int create(void **state)
{
    return corpus_create_trained(state, &trained);
}

static void generate(void **state, program_run *run, const char *options)
{
    scratch *in = *state;
    program_succeed(run, "generate --init %s/model.safetensors --tokens 30 %s", in->directory,
                    options);
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
    static const char *const options[] = {"--context 1", "--temperature 0.2", "--top-k 2"};
    program_run plain, other;
    generate(state, &plain, "");
    for (int i = 0; i < 3; i++) {
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
    generate(state, &run, "--prompt The$cat");
    assert_memory_equal(run.out, "the ", 4);
    assert_int_equal(count_words(run.out), 2 + 30);
}

static void what_cannot_be_generated_is_refused(void **state)
{
    scratch *in = *state;
    program_run run;
    const char *at = in->directory;
    program_start(&run, "generate");
    check_refused(&run, 2, "generate needs --init FILE\n");
    program_start(&run, "generate --init %s/none.safetensors", at);
    check_refused(&run, 1, "/none.safetensors: cannot be opened");
    program_start(&run, "generate --init %s/model.safetensors --tokens 0", at);
    check_refused(&run, 2, "--tokens must be a whole number from 1 to 1000000, got \"0\"\n");
    program_start(&run, "generate --init %s/model.safetensors --temperature -1", at);
    check_refused(&run, 2, "--temperature must be a number from 0, got \"-1\"\n");
    program_start(&run, "generate --init %s/model.safetensors --top-k x", at);
    check_refused(&run, 2, "--top-k must be a whole number from 0, got \"x\"\n");
    program_start(&run, "generate --init %s/model.safetensors --prompt ''", at);
    check_refused(&run, 2, "sluice: --prompt must not be empty\n");
    program_start(&run, "generate --init %s/model.safetensors --devices gpu", at);
    check_refused(&run, 1, "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"gpu\"\n");
    program_start(&run, "generate --init ''");
    check_refused(&run, 2, "--init must not be empty\n");
    program_start(&run, "generate --greedy --init %s/model.safetensors --temperature 2", at);
    check_refused(&run, 2, "--greedy draws nothing, so it cannot go with --temperature\n");
    program_start(&run, "generate --top-k 3 --greedy --init %s/model.safetensors", at);
    check_refused(&run, 2, "so it cannot go with --top-k\n");
}

/* Refused before a model of so many layers is built, which would take minutes. */
static void few_bytes_that_ask_for_a_large_model_are_refused(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"sluice.ntokens\":\"3\",\"sluice.emsize\":\"2\",\"sluice.nhid\":\"1\","
        "\"sluice.nlayers\":\"9999\",\"sluice.nhead\":\"1\",\"sluice.mask\":\"none\","
        "\"sluice.activation\":\"relu\",\"sluice.pre_norm\":\"true\"}}";
    scratch *in = *state;
    program_run run;
    char *path = scratch_path(in, "hostile.safetensors");
    write_safetensors(path, header, sizeof header - 1, 0);
    program_start(&run, "generate --init %s", path);
    assert_int_equal(remove(path), 0);
    check_refused(&run, 1,
                  "its tensors have 0 elements, far fewer than the model that its metadata");
}

static void weights_without_their_vocabulary_are_refused(void **state)
{
    scratch *in = *state;
    program_run run;
    char away[512];
    snprintf(away, sizeof away, "%s/away", in->directory);
    assert_int_equal(rename(scratch_path(in, "model.vocab.txt"), away), 0);
    program_start(&run, "generate --init %s/model.safetensors", in->directory);
    assert_int_equal(rename(away, scratch_path(in, "model.vocab.txt")), 0);
    check_refused(&run, 1, "/model.vocab.txt: ");
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
        cmocka_unit_test(what_cannot_be_generated_is_refused),
        cmocka_unit_test(few_bytes_that_ask_for_a_large_model_are_refused),
        cmocka_unit_test(weights_without_their_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, create, scratch_remove);
}
