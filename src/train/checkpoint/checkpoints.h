/* Saving a run's checkpoints, and going on from one.
 *
 *     checkpoints.c      when a save is due; copies the state, for which the run waits; a thread
 *                        writes the copy while the run goes on
 *     best.c             the parameters that did best in validation
 *     save_directory.c   --save-dir: names, the newest, the oldest to be removed
 *     run_state.c        what state.json says of the run
 *     resume.c           the way back
 *     io/checkpoint/     the format
 *     parallel/pipe/pipe_state.c  the run's tensors by name, and their copies
 *
 * The first replica saves what is the same on all, its ranks the tensors of their stages; where
 * the optimizers' state is sharded, every rank saves its shard. Where they all see the directory,
 * each one's thread writes a file of what it has. When it is on disk, they tell rank 0, over a
 * group of their own, which completes the checkpoint:
 *
 *     rank 0    |- model, own shard -|       |- indexes, state.json, rename -|
 *     rank 1    |- own shard -|              ^
 *     rank 2    |- own shard ----------------| reports
 *
 * Where they do not, rank 0 writes all in the same way, and asks for each tensor when its turn
 * comes (parallel/pipe/processes/state_stream.c). No step waits for a disk. */
#ifndef SLI_TRAIN_CHECKPOINT_CHECKPOINTS_H
#define SLI_TRAIN_CHECKPOINT_CHECKPOINTS_H

#include "io/checkpoint/format.h"
#include "parallel/pipe/pipe_optimizer.h"
#include "train/loop/run.h"

/* ---- When a run's state is saved (checkpoints.c) -------------------------------------------- */

/* Every replica calls these at the same places; the first one writes.
 *
 * Finds out that nothing could be written before hours have gone into the run, which is borrowed.
 */
sl_status sli_checkpoints_create(sli_run *run, sli_checkpoints **out);
void sli_checkpoints_destroy(sli_checkpoints **checkpoints); /* NULL is allowed */

/* After a step, and after a validation: saves what is due and
 * reports what has ended. After a validation within an epoch no state is saved: it would not say
 * that the validation is done. *stop: the run is to end here, and its state is saved. */
sl_status sli_checkpoints_after_step(sli_checkpoints *checkpoints, bool *stop);
sl_status sli_checkpoints_after_validation(sli_checkpoints *checkpoints, const sl_eval_info *eval,
                                           bool *stop);

/* Between the batches of a validation, whose begin is what is saved: a run that goes on from there
 * does it again. And between those of the test, before which the run's end was saved. */
sl_status sli_checkpoints_in_evaluation(sli_checkpoints *checkpoints, bool *stop);

/* Before the test changes parameters: a run of which only the test is left, and that came from
 * elsewhere, has not saved its end here. */
sl_status sli_checkpoints_before_test(sli_checkpoints *checkpoints);

/* Waits for the save under way, and reports it. *unsaved: rank 0's error where the last one failed,
 * which is the run's after its results. */
sl_status sli_checkpoints_finish(sli_checkpoints *checkpoints, sli_error_copy *unsaved);

/* ---- The way back (resume.c). The first replica reads; the others get what it read ---------- */

/* Decides where the run begins (train/plan/cases.h), and opens the checkpoint that it goes on from,
 * as run->resume, with what is to be known of it in run->found: that one, or the newest whole one
 * of a directory, reporting those that were skipped because they are damaged or have lost files.
 * There is none where none is needed and none was ever saved. Errors: SL_ERR_NOT_FOUND where none
 * is whole; any other that reading met, as SL_ERR_IO. */
sl_status sli_resume_open(sli_run *run, const sl_save_options *options);
void sli_resume_clear(sli_resume *resume);

/* Where a run that begins so looks for checkpoints; NULL: nowhere. */
const char *sli_resume_asked(const sl_save_options *options, int start);

/* Reports that the run goes on from it. */
sl_status sli_resume_report(const sli_run *run);

/* Whether the path has the state.json of a checkpoint. */
sl_status sli_resume_is_checkpoint(const char *path, bool *out);

/* The model's tensors, or of a run with adapters these, into pipes of any partition: the first
 * replica's at least. Errors: SL_ERR_INVALID where the pipe's base, run->base, is not that of the
 * checkpoint's adapters. */
sl_status sli_resume_model(const sli_run *run);

/* The optimizers' state, the best parameters and the position, on every replica. Without a
 * checkpoint everything stays as it is. The replicas' parameters must be equal already. */
sl_status sli_resume_rest(sli_run *run);

/* ---- What a checkpoint says of its run beside tensors (run_state.c) ------------------------- */

/* How far it has come, the options that decide its numbers, the text it is trained on, and how it
 * was laid out, as the text of a JSON object, malloc'ed:
 *
 *   {"step": 40, "epoch": 1, "block": 12, "best_step": 28, "best_loss": 4.9 or null,
 *    "identity": "93c1…", "job": "…",   whose it is, and the job, if there is one
 *    "options": {"emsize": 200, …},     by their names on the command line
 *    "layout": {"stages": 2, …},        that another run need not have
 *    "base": {"path": "/models/…", "checksum": "5f0e…"},   of a run with adapters, which are saved
 *                                       without it
 *    "settings": {…}}                   the caller's own (sl_save_options), if there are any
 */
sl_status sli_run_state_print(const sli_run *run, char **text);

/* Errors: SL_ERR_FORMAT, also for the state of what is no run. */
sl_status sli_run_state_read(const char *text, sli_recorded *out);

sl_status sli_run_state_owner(const char *text, sli_owner *out);

/* The caller's settings in it, malloc'ed; NULL where there are none. */
sl_status sli_run_state_settings(const char *text, char **settings);

/* The base's path in it, malloc'ed, and its checksum (sli_base_checksum). Errors: SL_ERR_FORMAT
 * where there is none. */
sl_status sli_run_state_base(const char *text, char **path, char checksum[SLI_BASE_CHECKSUM_BYTES]);

/* Refuses to continue with other options than those of `text`, the state of run->resume, naming
 * each that differs, and a position that these options cannot have. */
sl_status sli_run_state_check(const char *text, const sli_run *run);

/* ---- The best parameters (best.c) ----------------------------------------------------------- */

/* A real copy of the parameters that did best in validation, of the stages of this process and one
 * for all its replicas: their parameters are equal, bit for bit. It lies on the first one's
 * devices, stage by stage.
 *
 * Only the first replica writes it, in keep. The others read it, in restore, and must have heard
 * from the first one, in an operation of their group, since it was kept. `shared`: there are others
 * in this process. */
struct sli_best {
    bool shared, kept;
    int stages;
    sl_tensor **copies[]; /* [stages]: of the stage's buckets, then NULL; NULL: none yet */
};

sl_status sli_best_create(int stages, bool shared, sli_best **out);
void sli_best_destroy(sli_best **best);

/* Copies the replica's trained parameters, where it is the process's first one; the memory is taken
 * at the first call. */
sl_status sli_best_keep(sli_best *best, const sli_replica *replica);

/* Copies them back, to any replica's pipe. Without a kept copy it does nothing. */
sl_status sli_best_restore(const sli_best *best, sl_pipe *pipe);

/* ---- The directory that a run's checkpoints lie in (save_directory.c) ----------------------- */

/*   DIR/step-00000020/   DIR/step-00000040/   …   after so many steps; the newest is the last
 *   DIR/best/                                     the best model alone
 *   DIR/progress                                  the last step that the run has done
 *
 * One run at a time saves to it, and replaces and removes only what has its identity. A run that
 * resumes from the directory, or from a checkpoint in it, has that of the checkpoint; one that
 * resumes from there and finds none has that of `progress`; an attempt at a job whose `best` lies
 * there has that. Any other run has a new one.
 *
 * Makes the directory where it is not there, keeps other runs out as long as *descriptor is open,
 * and removes what saves that were interrupted have left. *identity: the run's. Errors, without an
 * open descriptor: SL_ERR_CONFLICT where another run has saved, or "best" is another run's;
 * SL_ERR_INVALID where another run saves there, or "best" is something else; SL_ERR_IO where
 * nothing can be written. */
sl_status sli_save_directory_open(const char *path, const sli_run *run, sli_identity *identity,
                                  int *descriptor);

/* Whether an attempt at the job has saved it. False without a job. */
bool sli_save_directory_is_of_job(const char *checkpoint, const char *job);

/* Whether one has saved a checkpoint in the directory. A job without a name (NULL) takes every one
 * for its own. */
sl_status sli_save_directory_has_saved(const char *path, const char *job, bool *out);

/* Refuses to replace a checkpoint of another run. Errors: SL_ERR_CONFLICT. */
sl_status sli_save_directory_check_owner(const char *checkpoint, const sli_identity *identity);

/* Whether all replicas see the same directory, as on one machine or a shared file system; called by
 * every replica, the first of which must have created it, with a number that is drawn for this run.
 */
sl_status sli_save_directory_is_shared(const char *path, const sli_replica *replica,
                                       uint64_t number, bool *out);

/* "DIR/step-00000040" and "DIR/best", malloc'ed. */
sl_status sli_save_directory_step(const char *path, int64_t step, char **out);
sl_status sli_save_directory_best(const char *path, char **out);

/* Removes the run's checkpoints of steps before `step` until, it included, at most `keep` (0: all)
 * stay. Of a link its target stays; a checkpoint in which a directory lies stays as it is. */
sl_status sli_save_directory_prune(const char *path, int64_t step, int keep,
                                   const sli_identity *identity);

/* The steps of the checkpoints in a directory (directories, or links to them), newest first: *steps
 * [*count], to be freed; with `others`, of what has a checkpoint's name but is none, as a file is.
 * A directory that is not there has none. Errors: SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_save_directory_list(const char *path, bool others, int64_t **steps, size_t *count);

/* DIR/progress: the last step that a run has done, and its identity. By it a run that goes on says
 * how many steps were lost. Errors are ignored, and it is not synced: it outlives a process, not a
 * power cut. A user's file or link of that name stays as it is. Opening gives a descriptor; -1
 * records nothing. Reading gives 0 and no identity where there is none. */
int sli_last_step_open(const char *directory);
void sli_last_step_write(int descriptor, int64_t step, const sli_identity *identity);
int64_t sli_last_step_read(const char *directory, sli_identity *identity);

/* ---- Models on disk, beyond the public functions (save_model.c, saved_model.c) ----------------
 */

/* Fails as sl_model_save would for a path that cannot be written or a disk without room; leaves
 * nothing behind. */
sl_status sli_model_check_save(const sl_pipe *pipe, const sl_model_options *model,
                               sl_saved_type type, const char *path);

#define SLI_TOKENIZER_FILE          "tokenizer.json"
#define SLI_TOKENIZER_SETTINGS_FILE "tokenizer_config.json"
#define SLI_GENERATION_FILE         "generation_config.json"

/* The files of a model's directory that have no tensors (model_texts.c). Cleared by
 * sli_model_texts_clear. */
typedef struct sli_model_texts {
    char *config, *tokenizer, *adapter;
    sl_checkpoint_file files[5]; /* [count] */
    size_t count;
} sli_model_texts;

/* `model`, `vocab`, `settings->generation` NULL: there is no such file. Errors: SL_ERR_MEMORY; to
 * be cleared then too. */
sl_status sli_model_texts_make(const sl_model_options *model, const sl_vocab *vocab,
                               const sl_model_saving *settings, sli_model_texts *out);
void sli_model_texts_clear(sli_model_texts *texts);

/* The same of an adapter's directory. */
sl_status sli_adapter_texts_make(const sl_model_options *model, sli_model_texts *out);

/* ---- Adapters (adapter.c) -------------------------------------------------------------------- */

/* Leaves the adapters' tensors, with the names that they have in files, or those of the model
 * without them. The list is not open. Errors: SL_ERR_MEMORY. */
sl_status sli_adapter_select(sli_tensors *tensors, bool adapters);

/* The key of an adapter's metadata that has the checksum of the weights that it was made for. */
#define SLI_ADAPTER_BASE_KEY "sluice.base"

/* That of all tensors of a pipe's model but those of adapters, the same for any cut; called by
 * every rank of the pipe's group. */
sl_status sli_base_checksum(const sl_pipe *pipe, char text[SLI_BASE_CHECKSUM_BYTES]);

/* Refuses adapters, of this path, whose base has another checksum. Errors: SL_ERR_INVALID. */
sl_status sli_base_compare(const char *path, const char *expected, const char *found);

/* Opens the adapter of a directory that PEFT or sluice has saved, or of a checkpoint, without the
 * model that it belongs to (saved_model.c). */
sl_status sli_adapter_open(const char *path, sl_saved_model **out);

/* sl_saved_model_load of such; `checks`: that the pipe has the base that the adapters were made
 * for, if they say which. */
sl_status sli_saved_model_load_adapter(const sl_saved_model *adapter, bool checks, sl_pipe *pipe);

/* sl_saved_model_open for a plan, which needs no weights: also of a config.json without any, by its
 * path or its directory's. Such a model cannot be loaded. */
sl_status sli_saved_model_open_config(const char *path, sl_saved_model **out);

/* The path of the model; of one that was opened by a checkpoint of adapters, the base's. */
const char *sli_saved_model_path(const sl_saved_model *model);

/* Numbers of 16 bits are read into the second half of the room of their f32, from where they can be
 * widened from the first one on. (narrow_items.c) */
bool sli_item_is_narrow(sl_dtype dtype);
void sli_item_place_narrow(sl_safetensors_item *item, sl_dtype dtype);
void sli_item_widen(const sl_safetensors_item *item);

/* Makes of a matrix [rows, columns] its transpose. (llmc_model.c) */
void sli_transpose(const float *from, int64_t rows, int64_t columns, float *to);

#endif
