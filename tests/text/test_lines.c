/* Lines of text as rows, and conversations by the templates that are built in. transformers gives
 * the same ids: in the comment above each conversation is what its template writes. */
#include "io/scratch.h"
#include "support/check.h"
#include "text/bpe.h"
#include "text/bpe_texts.h"
#include "text/rows.h"

#define SPECIAL(id, name)                                                                          \
    "{\"id\": " id ", \"content\": \"" name "\", \"special\": true, \"normalized\": false}"

static const char chatml[] =
    "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{{'<|im_start|>' + "
    "message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}";
static const char llama3[] =
    "{{ bos_token }}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}";

/* The 256 bytes; 256: the end, 257, 258: ChatML's marks, 259 to 262: Llama 3's. `template` is that
 * of its tokenizer_config.json; NULL: it has none. */
static sl_vocab *create_vocab(const char *template)
{
    static char vocab_json[BPE_TEXT_BYTES], text[2 * BPE_TEXT_BYTES];
    sl_vocab *vocab;
    write_vocab(vocab_json, "");
    int bytes = snprintf(
        text, sizeof text,
        "{\"added_tokens\": [" SPECIAL("256", "<end>") "," SPECIAL("257", "<|im_start|>") "," SPECIAL("258", "<|im_end|>") "," SPECIAL(
            "259",
            "<|begin_of_text|>") "," SPECIAL("260",
                                             "<|start_header_"
                                             "id|>") "," SPECIAL("261",
                                                                 "<|end_"
                                                                 "header_"
                                                                 "id|>") "," SPECIAL("262",
                                                                                     "<|eot_id|"
                                                                                     ">") "], "
                                                                                          "\"pr"
                                                                                          "e_"
                                                                                          "toke"
                                                                                          "nize"
                                                                                          "r\":"
                                                                                          " {"
                                                                                          "\"ty"
                                                                                          "pe\""
                                                                                          ": "
                                                                                          "\"By"
                                                                                          "teLe"
                                                                                          "vel"
                                                                                          "\", "
                                                                                          "\"ad"
                                                                                          "d_"
                                                                                          "pref"
                                                                                          "ix_"
                                                                                          "spac"
                                                                                          "e\":"
                                                                                          " fal"
                                                                                          "se},"
                                                                                          " "
                                                                                          "\"mo"
                                                                                          "del"
                                                                                          "\": "
                                                                                          "{\"t"
                                                                                          "ype"
                                                                                          "\": "
                                                                                          "\"BP"
                                                                                          "E\","
                                                                                          " \"v"
                                                                                          "ocab"
                                                                                          "\": "
                                                                                          "%s, "
                                                                                          "\"me"
                                                                                          "rges"
                                                                                          "\": "
                                                                                          "[]}"
                                                                                          "}",
        vocab_json);
    check_ok(sli_vocab_parse(text, (size_t)bytes, &vocab));
    json_t *settings = json_pack("{ss* ss}", "chat_template", template, "eos_token", "<end>");
    vocab->settings = json_dumps(settings, 0);
    json_decref(settings);
    return vocab;
}

/* Reads one line. `expected`: the targets as characters, with . for none and the special ones from
 * 256 on as capital letters from A. */
static void expect(const sl_vocab *vocab, bool no_mask, const char *line, const char *ids,
                   const char *targets)
{
    char path[] = "/tmp/sluice-lines-XXXXXX", found[2][512];
    SCOPED(sl_rows) *rows = NULL;
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, line, strlen(line)) == (ssize_t)strlen(line));
    close(file);
    check_ok(
        sl_rows_read(path,
                     &(sl_rows_options){.ntokens = 263, .vocab = vocab, .no_mask_prompt = no_mask},
                     &rows));
    unlink(path);
    assert_int_equal(rows->count, 1);
    for (int64_t i = 0; i < rows->begins[1]; i++) {
        int32_t id = rows->ids[i], target = rows->targets[i];
        found[0][i] = (char)(id >= 256 ? 'A' + id - 256 : id);
        found[1][i] = (char)(target == -100 ? '.' : target >= 256 ? 'A' + target - 256 : target);
    }
    found[0][rows->begins[1]] = found[1][rows->begins[1]] = '\0';
    assert_string_equal(found[0], ids);
    assert_string_equal(found[1], targets);
}

static void texts_end_with_the_end_of_text(void **state)
{
    SCOPED(sl_vocab) *vocab = create_vocab(NULL);
    assert_int_equal(sl_vocab_end(vocab), 256);
    expect(vocab, false, "{\"text\": \"abc\"}", "abcA", "bcA.");
}

static void prompts_have_no_loss_unless_they_are_asked_for(void **state)
{
    SCOPED(sl_vocab) *vocab = create_vocab(NULL);
    static const char line[] = "{\"prompt\": \"ab\", \"completion\": \"cd\"}";
    expect(vocab, false, line, "abcdA", ".cdA.");
    expect(vocab, true, line, "abcdA", "bcdA.");
}

/* <|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
 * yo<|im_end|>\n */
static void chatml_is_written_and_what_the_assistant_says_has_a_loss(void **state)
{
    SCOPED(sl_vocab) *vocab = create_vocab(chatml);
    static const char line[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": "
        "\"assistant\", \"content\": \"yo\"}]}";
    expect(vocab, false, line, "Bsystem\nBe kind.C\nBuser\nhiC\nBassistant\nyoC\n",
           "......................................yoC..");
    expect(vocab, true, line, "Bsystem\nBe kind.C\nBuser\nhiC\nBassistant\nyoC\n",
           "system\nBe kind.C\nBuser\nhiC\nBassistant\nyoC\n.");
    expect(vocab, false,
           "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"assistant\", "
           "\"content\": \"yo\"}]}",
           "Bsystem\nsC\nBassistant\nyoC\n", ".....................yoC..");
}

/* <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>… */
static void llama3_is_written(void **state)
{
    SCOPED(sl_vocab) *vocab = create_vocab(llama3);
    expect(
        vocab, false,
        "{\"messages\": [{\"role\": \"user\", \"content\": \" hi\\n\"}, {\"role\": \"assistant\", "
        "\"content\": \"yo\"}]}",
        "DEuserF\n\nhiGEassistantF\n\nyoG", "........................yoG.");
}

static const sl_message said[] = {{"user", "hi"}, {"assistant", "yo"}, {"user", "so"}};

static void expect_said(const char *template, size_t count, const char *expected)
{
    SCOPED(sl_vocab) *vocab = create_vocab(template);
    char found[256];
    sl_tokens tokens;
    check_ok(sl_chat_encode(vocab, said, count, &tokens));
    for (int64_t i = 0; i < tokens.count; i++)
        found[i] = (char)(tokens.ids[i] >= 256 ? 'A' + tokens.ids[i] - 256 : tokens.ids[i]);
    found[tokens.count] = '\0';
    sl_tokens_free(&tokens);
    assert_string_equal(found, expected);
}

static void what_a_user_says_ends_where_the_answer_begins(void **state)
{
    SCOPED(sl_vocab) *none = create_vocab(NULL);
    sl_tokens tokens;
    expect_said(chatml, 1, "Bsystem\nBe kind.C\nBuser\nhiC\nBassistant\n");
    expect_said(chatml, 3,
                "Bsystem\nBe kind.C\nBuser\nhiC\nBassistant\nyoC\nBuser\nsoC\nBassistant\n");
    expect_said(llama3, 1, "DEuserF\n\nhiGEassistantF\n\n");
    expect_said(llama3, 3, "DEuserF\n\nhiGEassistantF\n\nyoGEuserF\n\nsoGEassistantF\n\n");
    check_error(sl_chat_encode(none, said, 1, &tokens), SL_ERR_NOT_FOUND, "no chat_template");
    check_error(sl_chat_encode(none, said, 0, &tokens), SL_ERR_INVALID, "at least one message");
    assert_true(sl_vocab_is_special(none, 257));
    assert_false(sl_vocab_is_special(none, 'a'));
}

static void lines_that_are_wrong_are_refused(void **state)
{
    static const struct {
        const char *line, *expected;
        sl_status status;
    } cases[] = {
        {"{\"text\": \"\"}", "line 1: \"text\" must be a text that is not empty", SL_ERR_FORMAT},
        {"{\"text\": 3}", "\"text\" must be a text", SL_ERR_FORMAT},
        {"{\"completion\": \"a\"}", "\"prompt\" must be a text beside", SL_ERR_FORMAT},
        {"{\"prompt\": \"a\", \"completion\": \"\"}",
         "\"completion\" must be a text that is not empty", SL_ERR_FORMAT},
        {"{\"messages\": []}", "\"messages\" must be a list that is not empty", SL_ERR_FORMAT},
        {"{\"messages\": [{\"content\": \"a\"}]}", "every message must have a \"role\"",
         SL_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"assistant\"}]}", "every message must have a \"content\"",
         SL_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
         "a conversation must end with what the assistant says", SL_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]}",
         "what the assistant says must not be empty", SL_ERR_FORMAT},
    };
    SCOPED(sl_vocab) *vocab = create_vocab(chatml);
    scratch *dir = *state;
    sl_rows *rows;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(scratch_path(dir, "a.jsonl"), cases[i].line, strlen(cases[i].line));
        check_error(sl_rows_read(dir->path, &(sl_rows_options){.vocab = vocab}, &rows),
                    cases[i].status, cases[i].expected);
        assert_null(rows);
    }
    static const char text[] = "{\"text\": \"a\"}";
    write_file(dir->path, text, sizeof text - 1);
    check_error(sl_rows_read(dir->path, &(sl_rows_options){0}, &rows), SL_ERR_NOT_FOUND,
                "/a.jsonl: line 1: it has text, and there is no tokenizer");
}

static void other_templates_are_refused(void **state)
{
    static const char line[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}";
    scratch *dir = *state;
    sl_rows *rows;
    SCOPED(sl_vocab) *none = create_vocab(NULL);
    SCOPED(sl_vocab) *other = create_vocab("{{ '[INST]' + message['content'] }}");
    SCOPED(sl_vocab) *reasons = create_vocab("<|im_start|> <think> <|im_end|>");
    write_file(scratch_path(dir, "a.jsonl"), line, sizeof line - 1);
    check_error(sl_rows_read(dir->path, &(sl_rows_options){.vocab = none}, &rows), SL_ERR_NOT_FOUND,
                "the tokenizer has no chat_template in its tokenizer_config.json: render");
    check_error(sl_rows_read(dir->path, &(sl_rows_options){.vocab = other}, &rows),
                SL_ERR_UNSUPPORTED, "is neither ChatML nor Llama 3's, but \"{{ '[INST]' +");
    check_error(sl_rows_read(dir->path, &(sl_rows_options){.vocab = reasons}, &rows),
                SL_ERR_UNSUPPORTED, "is neither ChatML");
}

/* None is dropped: what is left over is a row as well. */
static void long_texts_are_cut_into_rows(void **state)
{
    static const char line[] = "{\"text\": \"abcdefg\"}";
    scratch *dir = *state;
    SCOPED(sl_rows) *rows = NULL;
    SCOPED(sl_vocab) *vocab = create_vocab(NULL);
    write_file(scratch_path(dir, "a.jsonl"), line, sizeof line - 1);
    check_ok(sl_rows_read(dir->path, &(sl_rows_options){.positions = 3, .vocab = vocab}, &rows));
    assert_int_equal(rows->count, 3);
    assert_int_equal(rows->begins[1], 3);
    assert_int_equal(rows->begins[3], 8);
    assert_int_equal(rows->targets[2], -100);
    assert_int_equal(rows->targets[6], 256);
}

int lines_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_end_with_the_end_of_text),
        cmocka_unit_test(prompts_have_no_loss_unless_they_are_asked_for),
        cmocka_unit_test(chatml_is_written_and_what_the_assistant_says_has_a_loss),
        cmocka_unit_test(llama3_is_written),
        cmocka_unit_test(what_a_user_says_ends_where_the_answer_begins),
        cmocka_unit_test_setup_teardown(lines_that_are_wrong_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(other_templates_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(long_texts_are_cut_into_rows, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
