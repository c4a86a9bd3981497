/* Reading texts: by how many threads. */
#include "io/scratch.h"

#include "support/check.h"
#include "text/drawn_texts.h"
#include "text/tokens.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { TEXT_BYTES = 1 << 20, MOST_ROUNDS = 100 };

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* . and .. */
    assert_non_null(tasks);
    while (readdir(tasks))
        count++;
    closedir(tasks);
    return count;
}

/* A thread that looks again and again how many there are. */
typedef struct watch {
    pthread_t thread;
    atomic_int most;
    atomic_bool ends;
} watch;

static void *watch_threads(void *argument)
{
    watch *on = argument;
    while (!atomic_load(&on->ends)) {
        int count = count_threads();
        if (count > atomic_load(&on->most))
            atomic_store(&on->most, count);
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return NULL;
}

/* How many threads were seen to read the text, the caller among them. A thread that was joined may
 * still be there for a moment. */
static int watch_reading(void (*read)(const sl_vocab *, const char *, int), const sl_vocab *vocab,
                         const char *path, int threads, int before)
{
    watch on = {.most = before + 1};
    while (count_threads() > before)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    assert_int_equal(pthread_create(&on.thread, NULL, watch_threads, &on), 0);
    read(vocab, path, threads);
    atomic_store(&on.ends, true);
    pthread_join(on.thread, NULL);
    return atomic_load(&on.most) - before;
}

static void read_text(const sl_vocab *vocab, const char *path, int threads)
{
    sl_tokens tokens;
    check_ok(sli_tokens_read(vocab, path, path, sli_whole_text, threads, &tokens));
    sl_tokens_free(&tokens);
}

static void read_rows(const sl_vocab *vocab, const char *path, int threads)
{
    sl_rows *rows;
    check_ok(sl_rows_read(path, &(sl_rows_options){.vocab = vocab, .threads = threads}, &rows));
    sl_rows_destroy(&rows);
}

static void write_lines(const char *path, const char *line)
{
    FREED char *text = malloc(TEXT_BYTES);
    assert_non_null(text);
    size_t length = strlen(line), bytes = TEXT_BYTES / length * length;
    for (size_t i = 0; i < bytes; i++)
        text[i] = line[i % length];
    write_file(path, text, bytes);
}

/* Those of the process while it reads nothing. ThreadSanitizer starts one of its own with the first
 * that is created. */
static int count_idle_threads(void)
{
    watch none = {.ends = true};
    assert_int_equal(pthread_create(&none.thread, NULL, watch_threads, &none), 0);
    pthread_join(none.thread, NULL);
    int least = count_threads();
    for (int moment = 0; moment < 30; moment++) { /* a joined one may be there for as long */
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        int count = count_threads();
        least = count < least ? count : least;
    }
    return least;
}

/* Threads end quickly, so that they may have been overlooked. */
static void texts_are_read_by_as_many_threads_as_are_asked_for(void **state)
{
    static const struct {
        void (*read)(const sl_vocab *, const char *, int);
        const char *name, *line;
    } of[] = {{read_text, "text", "one two three\n"},
              {read_rows, "lines.jsonl", "{\"text\": \"one two three\"}\n"}};
    SCOPED(sl_vocab) *vocab = make_vocab("gpt2", "");
    const int before = count_idle_threads();
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char *path = scratch_path(*state, of[i].name);
        int seen = 0;
        write_lines(path, of[i].line);
        assert_int_equal(watch_reading(of[i].read, vocab, path, 1, before), 1);
        for (int round = 0; round < MOST_ROUNDS && seen < 3; round++) {
            seen = watch_reading(of[i].read, vocab, path, 3, before);
            assert_in_range(seen, 1, 3);
        }
        assert_int_equal(seen, 3);
    }
}

int tokens_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(texts_are_read_by_as_many_threads_as_are_asked_for,
                                        scratch_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
