/* A checkpoint that several ranks write, none of which has the whole of a tensor: its readers see
 * whole tensors, and nothing that does not fit together is taken for one. */
#include "scratch.h"

#include "io/checkpoint/format.h"
#include "support/check.h"

#include <sys/stat.h>

enum { RANKS = 4, ROWS = 4, COLUMNS = 5, ELEMENTS = ROWS * COLUMNS };

static const char shapes[] = "{\"a\":[4,5]}";

/* "a" in segments of 8, 8 and 4 elements, and "b" [2], which rank 1 has; the last has nothing. */
typedef struct saved {
    float a[ELEMENTS], b[2];
    sl_safetensors_item items[RANKS]; /* a@0, then rank 1's two, then a@16 */
    sl_metadata metadata;
    sli_shard_report reports[RANKS];
    int rank; /* that writes */
} saved;

static void fill(saved *filled)
{
    *filled = (saved){.b = {-1, -2}, .metadata = {SLI_SEGMENTS_KEY, shapes}};
    for (int i = 0; i < ELEMENTS; i++)
        filled->a[i] = (float)i;
    filled->items[0] = (sl_safetensors_item){"a@0", SL_F32, sl_shape_1d(8), filled->a};
    filled->items[1] = (sl_safetensors_item){"a@8", SL_F32, sl_shape_1d(8), filled->a + 8};
    filled->items[2] = (sl_safetensors_item){"b", SL_F32, sl_shape_1d(2), filled->b};
    filled->items[3] = (sl_safetensors_item){"a@16", SL_F32, sl_shape_1d(4), filled->a + 16};
}

/* The ranks write one after the other, rank 0 last. */
static sl_status keep_report(void *context, const sli_shard_report *own)
{
    saved *filled = context;
    filled->reports[filled->rank] = *own;
    return SL_OK;
}

static sl_status write_rank(saved *s, const char *path, int rank)
{
    static const size_t first[RANKS] = {0, 1, 3, 4}, count[RANKS] = {1, 2, 1, 0};
    const sl_checkpoint_part part = {"optimizer", s->items + first[rank], count[rank], &s->metadata,
                                     count[rank] > 0};
    const sli_checkpoint_shard shard = {.number = rank + 1, .count = RANKS};
    const sl_checkpoint_file vocab = {"model.vocab.txt", "the\n", 4};
    const sl_checkpoint_contents contents = {.parts = &part,
                                             .part_count = 1,
                                             .files = &vocab,
                                             .file_count = rank == 0,
                                             .state = "{\"step\":1}"};
    s->rank = rank;
    return sli_checkpoint_write(path, &contents,
                                &(sli_checkpoint_writing){.id = 0x1234,
                                                          .shards = &shard,
                                                          .rank = rank,
                                                          .ranks = RANKS,
                                                          .gather = keep_report,
                                                          .context = s,
                                                          .all = s->reports});
}

static void save_all(const char *path)
{
    saved made;
    fill(&made);
    for (int rank = RANKS - 1; rank >= 0; rank--)
        check_ok(write_rank(&made, path, rank));
}

static void remove_tree(const char *path)
{
    char line[700];
    snprintf(line, sizeof line, "rm -r '%s'", path);
    assert_int_equal(system(line), 0);
}

/* ---- Whole ---------------------------------------------------------------------------------- */

static void check_whole(const char *path)
{
    float a[ELEMENTS], b[2];
    const sl_safetensors_item items[] = {{"b", SL_F32, sl_shape_1d(2), b},
                                         {"a", SL_F32, sl_shape_2d(ROWS, COLUMNS), a}};
    sl_checkpoint_reader *reader;
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_verify(reader));
    assert_int_equal(sl_checkpoint_tensor_count(reader, "optimizer"), 2);
    check_ok(sl_checkpoint_read(reader, "optimizer", items, 2));
    for (int i = 0; i < ELEMENTS; i++)
        assert_float_equal(a[i], i, 0);
    assert_float_equal(b[1], -2, 0);
    const sl_safetensors_info *joined = sl_checkpoint_tensor_get(reader, "optimizer", 0);
    assert_string_equal(joined->name, "a");
    assert_int_equal(joined->dims, 2);
    assert_int_equal(joined->size[1], COLUMNS);
    assert_int_equal(joined->bytes, sizeof a);
    sl_checkpoint_close(&reader);
}

static void shards_of_several_ranks_are_whole_tensors_to_readers(void **state)
{
    char path[512], other[512];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "saved"));
    snprintf(other, sizeof other, "%s", scratch_path(*state, "converted"));
    save_all(path);
    check_whole(path);
    assert_int_equal(access(scratch_path(*state, "saved/optimizer-00004-of-00004.safetensors"),
                            F_OK),
                     0);
    check_ok(sl_checkpoint_convert(path, other, 0));
    check_whole(other);
    assert_int_equal(access(scratch_path(*state, "converted/optimizer.safetensors"), F_OK), 0);
    remove_tree(path);
    remove_tree(other);
}

static sl_device *only_a(void *context, const char *name)
{
    return name[0] == 'a' ? context : NULL;
}

static void segments_go_to_a_device_as_one_tensor(void **state)
{
    sl_device *device;
    sl_checkpoint_reader *reader;
    sl_checkpoint_tensor *tensors;
    size_t count;
    char *path = scratch_path(*state, "saved");
    save_all(path);
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_load(reader, "optimizer", only_a, device, &tensors, &count));
    assert_int_equal(count, 1);
    for (int i = 0; i < ELEMENTS; i++)
        assert_float_equal(sl_tensor_f32(tensors[0].tensor)[i], i, 0);
    sl_checkpoint_tensors_destroy(&tensors, count);
    sl_checkpoint_close(&reader);
    sl_device_destroy(&device);
    remove_tree(path);
}

/* Whatever segments the files have. */
static void any_range_is_read(void **state)
{
    sl_checkpoint_reader *reader;
    char *path = scratch_path(*state, "saved");
    save_all(path);
    check_ok(sl_checkpoint_open(path, &reader));
    const sli_checkpoint_entry *whole = sli_checkpoint_find_tensor(reader, "optimizer", "a");
    for (int first = 0; first <= ELEMENTS; first++)
        for (int count = 0; count <= ELEMENTS - first; count++) {
            float a[ELEMENTS + 1];
            for (int i = 0; i <= ELEMENTS; i++)
                a[i] = -9;
            check_ok(sli_checkpoint_read_elements(reader, whole, first, count, a));
            for (int i = 0; i <= ELEMENTS; i++)
                assert_float_equal(a[i], i < count ? first + i : -9, 0);
        }
    sl_checkpoint_close(&reader);
    remove_tree(path);
}

/* ---- Not whole ------------------------------------------------------------------------------ */

static void ranks_that_did_not_write_fail_the_save(void **state)
{
    saved made;
    char *path = scratch_path(*state, "saved");
    fill(&made);
    made.reports[1].numbers[0] = 2;
    check_error(write_rank(&made, path, 0), SL_ERR_IO,
                "another rank has written it, but it cannot be seen");
    assert_int_equal(scratch_entries(*state, 0), 0);
    check_ok(write_rank(&made, path, 1));
    made.reports[1].files[0].bytes++;
    check_error(write_rank(&made, path, 0), SL_ERR_IO, "another rank has written ");
    made.reports[1].error = (sli_error_copy){SL_ERR_IO, SLI_NO_RANK, "no room"};
    check_error(write_rank(&made, path, 0), SL_ERR_IO, "rank 1: no room");
    assert_int_equal(scratch_entries(*state, 0), 0);
}

/* Rank 0 hears why, as the others do. */
static void rank_that_cannot_write_says_so(void **state)
{
    saved made;
    char *path = scratch_path(*state, "no/where");
    fill(&made);
    assert_int_equal(write_rank(&made, path, 1), SL_ERR_NOT_FOUND);
    assert_int_equal(made.reports[1].error.status, SL_ERR_NOT_FOUND);
    assert_non_null(
        strstr(made.reports[1].error.text, "no/where: the checkpoint cannot be written: "));
}

/* A checkpoint of these items, opened; its error is the thread's. */
static sl_status open_items(scratch *dir, const sl_safetensors_item *items, size_t count,
                            const char *told)
{
    char path[512];
    const sl_metadata metadata = {SLI_SEGMENTS_KEY, told};
    const sl_checkpoint_part part = {"optimizer", items, count, &metadata, 1};
    sl_checkpoint_reader *reader;
    snprintf(path, sizeof path, "%s", scratch_path(dir, "saved"));
    check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &part, .part_count = 1}));
    sl_status status = sl_checkpoint_open(path, &reader);
    sl_checkpoint_close(&reader);
    remove_tree(path);
    return status;
}

static void segments_that_do_not_make_up_their_tensor_are_refused(void **state)
{
    float values[8] = {0};
    int64_t numbers[8] = {0};
    const sl_safetensors_item first = {"a@0", SL_F32, sl_shape_1d(4), values},
                              second = {"a@4", SL_F32, sl_shape_1d(4), values},
                              late = {"a@5", SL_F32, sl_shape_1d(3), values},
                              early = {"a@3", SL_F32, sl_shape_1d(5), values},
                              other = {"a@4", SL_I64, sl_shape_1d(4), numbers},
                              flat = {"a@4", SL_F32, sl_shape_2d(2, 2), values},
                              whole = {"a", SL_F32, sl_shape_2d(2, 4), values},
                              plain = {"a@x", SL_F32, sl_shape_1d(1), values};
    const char *const told = "{\"a\":[2,4]}";
    check_ok(open_items(*state, (sl_safetensors_item[]){first, second}, 2, told));
    check_ok(open_items(*state, (sl_safetensors_item[]){first, second, plain}, 3, told));
    check_ok(open_items(*state, (sl_safetensors_item[]){first, late}, 2, "{}")); /* mere names */
    check_error(open_items(*state, &first, 1, told), SL_ERR_FORMAT,
                "tensor \"a\" has 8 elements, but its segments have 4");
    check_error(open_items(*state, &second, 1, told), SL_ERR_FORMAT, "end at element 0 of 8");
    check_error(open_items(*state, (sl_safetensors_item[]){first, late}, 2, told), SL_ERR_FORMAT,
                "segment \"a@5\" has 3 elements, but the segments before it end at element 4 of 8");
    check_error(open_items(*state, (sl_safetensors_item[]){first, early}, 2, told), SL_ERR_FORMAT,
                "segment \"a@3\" has 5 elements, but the segments before it end at element 4 of 8");
    check_error(open_items(*state, (sl_safetensors_item[]){first, second}, 2, "{\"a\":[7]}"),
                SL_ERR_FORMAT, "element 4 of 7");
    check_error(open_items(*state, (sl_safetensors_item[]){first, other}, 2, told), SL_ERR_FORMAT,
                "no segment of the same tensor");
    check_error(open_items(*state, (sl_safetensors_item[]){first, flat}, 2, told), SL_ERR_FORMAT,
                "no segment of the same tensor");
    check_error(open_items(*state, (sl_safetensors_item[]){first, second, whole}, 3, told),
                SL_ERR_FORMAT, "tensor \"a\" is there more than once");
}

static void metadata_without_shapes_are_refused(void **state)
{
    static const char *const cases[] = {"",
                                        "[]",
                                        "{\"a\":4}",
                                        "{\"a\":[2,0]}",
                                        "{\"a\":[2,-4]}",
                                        "{\"a\":[2.0]}",
                                        "{\"a\":[1,1,1,1,1]}",
                                        "{\"a\":[4294967296,4294967296]}",
                                        "{\"a\":[1],\"a\":[1]}"};
    float value = 0;
    const sl_safetensors_item item = {"b", SL_F32, sl_shape_1d(1), &value};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(open_items(*state, &item, 1, cases[i]), SL_ERR_FORMAT, "sluice.segments");
}

static void names_of_segments_are_found(void **state)
{
    (void)state;
    sli_cut_tensors cut;
    int64_t offset = -1;
    sl_safetensors_item item = {"ab", SL_F32, sl_shape_1d(20), NULL};
    json_t *json = json_pack("{s[i]s[i]}", "b@1", 9, "a", 3);
    check_ok(sli_checkpoint_make_segment(&item, 12, 7, json));
    assert_string_equal(item.name, "ab@12");
    assert_int_equal(item.shape.size[0], 7);
    char *text = json_dumps(json, 0);
    check_ok(sli_cut_tensors_parse(text, &cut));
    assert_int_equal(sli_cut_tensors_find(&cut, item.name, &offset)->shape.size[0], 20);
    assert_int_equal(offset, 12);
    json_decref(json);
    free(text);
    free((char *)item.name);
    assert_int_equal(sli_cut_tensors_find(&cut, "b@1@0", &offset)->shape.size[0], 9);
    static const char *const others[] = {"a",   "a@",  "a@-1",  "a@01", "a@1x",
                                         "b@0", "c@0", "abc@0", "@0",   "a@99999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_null(sli_cut_tensors_find(&cut, others[i], &offset));
    sli_cut_tensors_clear(&cut);
}

int checkpoint_shards_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shards_of_several_ranks_are_whole_tensors_to_readers,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(segments_go_to_a_device_as_one_tensor, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(any_range_is_read, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(ranks_that_did_not_write_fail_the_save, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(rank_that_cannot_write_says_so, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(segments_that_do_not_make_up_their_tensor_are_refused,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(metadata_without_shapes_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(names_of_segments_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
