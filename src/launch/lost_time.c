/* The time that failures take from a job. Its programs tell how many steps are done; an attempt
 * that starts again tells it first when its training begins.
 *
 *     step N is done      failure      all ended       training begins       step N is done again
 *           ├─── repeating ──┼── noticing ──┼── restarting ──┼────── repeating ──────┤
 *
 * The first interval is the work that the failure interrupted. Where a rank is lost with its host,
 * the time in which nothing was heard of it counts as noticing. */
#include "core/clock.h"
#include "launch/launch.h"

static void add(sl_launch_lost_time *sum, const sl_launch_lost_time *more)
{
    sum->failures += more->failures;
    sum->notice_seconds += more->notice_seconds;
    sum->restart_seconds += more->restart_seconds;
    sum->repeat_seconds += more->repeat_seconds;
    sum->repeated_steps += more->repeated_steps;
}

/* The gap ends at the time `now`. */
static void close_gap(sli_lost_time *self, double now)
{
    if (self->resumed > 0)
        self->gap.repeat_seconds += now - self->resumed;
    else
        self->gap.restart_seconds = now - self->ended;
    add(&self->total, &self->gap);
    self->in_gap = false;
}

static void report(sli_lost_time *self, sl_launch_event_kind kind, const sl_launch_lost_time *lost,
                   double seconds)
{
    sl_launch_event event = {.kind = kind,
                             .lost = lost,
                             .knows_steps = self->knows_steps,
                             .seconds = seconds};
    self->options->report(self->options->context, &event);
}

void sli_lost_time_begin(sli_lost_time *self, const sl_launch_options *options)
{
    *self = (sli_lost_time){.options = options, .attempts = 1, .began = sli_clock_seconds()};
}

void sli_lost_time_add_attempt(sli_lost_time *self, double failed, bool host_lost, bool is_failure)
{
    if (self->in_gap) { /* the attempt failed before it had repeated the lost steps */
        close_gap(self, failed);
        self->stepped = failed;
    }
    self->in_gap = true;
    self->attempts++;
    self->resumed = 0;
    self->ended = sli_clock_seconds();
    self->gap = (sl_launch_lost_time){.failures = is_failure};
    double unheard_since = self->knows_steps && host_lost ? self->stepped : failed;
    if (self->knows_steps && unheard_since > self->stepped)
        self->gap.repeat_seconds = unheard_since - self->stepped;
    self->gap.notice_seconds = self->ended - unheard_since;
}

void sli_lost_time_add_steps(sli_lost_time *self, int64_t steps)
{
    double now = sli_clock_seconds();
    self->knows_steps = true;
    if (self->in_gap && self->resumed == 0) {
        self->resumed = now;
        self->gap.restart_seconds = now - self->ended;
        self->gap.repeated_steps = steps < self->steps ? self->steps - steps : 0;
    }
    if (steps < self->steps)
        return;
    if (self->in_gap) {
        close_gap(self, now);
        report(self, SL_LAUNCH_CAUGHT_UP, &self->gap, now - self->stepped);
    }
    self->steps = steps;
    self->stepped = now;
}

void sli_lost_time_all_started(sli_lost_time *self)
{
    if (self->in_gap && !self->knows_steps)
        close_gap(self, sli_clock_seconds());
}

void sli_lost_time_end(sli_lost_time *self, bool failed)
{
    double now = sli_clock_seconds();
    if (self->in_gap)
        close_gap(self, failed ? self->ended : now);
    self->attempts -= failed; /* the next one does not come */
    if (self->attempts > 1)
        report(self, SL_LAUNCH_ENDED, &self->total, now - self->began);
}
