/* What a run is, case by case: where it begins, and which rule its layout follows. */
#ifndef SLI_TRAIN_PLAN_CASES_H
#define SLI_TRAIN_PLAN_CASES_H

/* A row of a table: what follows from three facts. */
typedef struct sli_case {
    int facts[3]; /* SLI_ANY: whatever it is */
    int outcome;
} sli_case;

enum { SLI_ANY = -1, SLI_NO = 0, SLI_YES = 1 };

/* The outcome of the first row that holds for these facts; SLI_ANY: none does. */
int sli_case_find(const sli_case *rows, int count, const int facts[3]);

/* ---- Where a run begins -------------------------------------------------------------------- */

/* What it is to resume from; whether this is another attempt at its job; and what an attempt at the
 * job has saved in its directory. */
enum { SLI_RESUME_NOTHING, SLI_RESUME_NAMED, SLI_RESUME_AUTO, SLI_RESUME_WISHES };
enum { SLI_SAVES_NOTHING, SLI_SAVED_NONE, SLI_SAVED_SOME, SLI_SAVED_KINDS };

typedef enum sli_start {
    SLI_START_NEW,
    SLI_START_AGAIN,  /* new, in another attempt, which says so */
    SLI_START_NAMED,  /* from what was named, or with an error */
    SLI_START_NEWEST, /* from the newest checkpoint in the run's directory, or new */
    SLI_START_OWN     /* from the newest there that the job has saved, by itself, which it says */
} sli_start;

enum { SLI_START_CASES = 10 };
extern const sli_case sli_start_cases[SLI_START_CASES];

/* ---- Which layout it has --------------------------------------------------------------------- */

/* Which processes it has: one, that nobody has launched; one, that is the only one of a launcher;
 * or ranks of a group. Who says how many replicas there are. Whether the job had more processes
 * when it began. */
enum { SLI_PROCESS_OWN, SLI_PROCESS_ALONE, SLI_PROCESS_RANKS, SLI_PROCESS_KINDS };
enum { SLI_REPLICAS_OPEN, SLI_REPLICAS_LISTED, SLI_REPLICAS_GIVEN, SLI_REPLICAS_WISHES };

typedef enum sli_layout_rule {
    SLI_LAYOUT_ASKED,     /* as the options say */
    SLI_LAYOUT_PROCESSES, /* as many replicas as processes */
    SLI_LAYOUT_ONE,       /* one replica. A job may have come to that by losing processes, so what
                             was asked of several is no mistake */
    SLI_LAYOUT_SEARCHED   /* the best one for fewer processes (search_job.c) */
} sli_layout_rule;

enum { SLI_LAYOUT_CASES = 9 };
extern const sli_case sli_layout_cases[SLI_LAYOUT_CASES];

#endif
