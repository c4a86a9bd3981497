/* Runs the program that is built, named by SLUICE_PROGRAM, as a user does. */
#ifndef TESTS_SUPPORT_PROGRAM_H
#define TESTS_SUPPORT_PROGRAM_H

#include "io/scratch.h"
#include "support/check.h"

#include <stdbool.h>

/* How one run ended, and what it wrote, cut off where it is too long. */
typedef struct program_run {
    int status; /* the exit status; -1 after a signal */
    char out[65536], err[16384];
} program_run;

/* False, having said so, where there is no program: then a test program returns 77. */
bool program_exists(void);

/* Whether there is an mpirun; says so where there is none. */
bool mpirun_exists(void);

/* Runs it with the words of `format`, printed and cut at blanks; `$` in a word stands for a blank,
 * a word `''` for an empty one. Standard input is empty, the outputs are no terminals. */
void program_start(program_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, and fails the test unless the exit status is 0 and standard error empty. */
void program_succeed(program_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same, with standard error a terminal, whose text lands in `err`. */
void program_start_on_terminal(program_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- A small corpus, and a model small enough for it ---------------------------------------- */

enum { CORPUS_FILES = 3 };

#define TINY_MODEL "--emsize 16 --nhid 16 --nhead 2 --nlayers 2"
#define TINY_BATCH "--bptt 8 --eval-batch-size 8"

/* cmocka's set-up: `*state` is a scratch with a synthetic text of 4,000 tokens. */
int corpus_create(void **state);

/* The same with a model trained on it for a few batches: model/. What
 * the training printed is in `trained`. */
int corpus_create_trained(void **state, program_run *trained);

/* ---- Checks --------------------------------------------------------------------------------- */

/* Fails the test unless the run ended with `status`, nothing on standard output, and exactly one
 * line on standard error, which begins with "sluice: " and contains `text`. */
void check_refused_at(const program_run *run, int status, const char *text, const char *file,
                      int line);
#define check_refused(run, status, text) check_refused_at(run, status, text, __FILE__, __LINE__)

/* Fails the test unless `text` contains `part` (check_without: does not). */
void check_text_at(const char *text, const char *part, bool there, const char *file, int line);
#define check_text(text, part)    check_text_at(text, part, true, __FILE__, __LINE__)
#define check_without(text, part) check_text_at(text, part, false, __FILE__, __LINE__)

/* The number that follows `label` in `text`; fails the test where there is none. */
double number_after(const char *text, const char *label);

/* Fails the test unless a line of `text` matches the extended regular expression `pattern`. */
void check_line(const char *text, const char *pattern);

#endif
