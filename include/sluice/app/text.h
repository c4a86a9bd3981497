/* From text files to batches of token ids, as torchtext and PyTorch's language model tutorials do:
 *
 *   line --sl_tokenizer--> tokens --sl_vocab--> ids --sl_batchify--> columns --> blocks [N, T]
 *
 * or by the tokenizer of a model of today, which is an sl_vocab as well.
 *
 * sl_corpus_load does the first two for a directory of three files. Everything here is host memory
 * and plain integers, without devices or tensors. Objects that are only read (vocabulary,
 * corpus, batches) may be shared between threads; a tokenizer or a builder belongs to one at a
 * time. */
#ifndef SLUICE_APP_TEXT_H
#define SLUICE_APP_TEXT_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

SL_API_BEGIN

/* ---- Tokenizer -------------------------------------------------------------------------- */

/* A token's bytes, never empty: UTF-8 without zeros, but of a BPE any. */
typedef struct sl_token {
    const char *text;
    size_t bytes;
} sl_token;

/* torchtext.data.utils.get_tokenizer("basic_english"): lower case; then these substitutions, in
 * this order; then the line is cut at white space:
 *
 *   spaces around '    " removed    spaces around .    "<br />" becomes a space
 *   spaces around , ( ) ! ?         ; and : become spaces
 *
 * Lower case and white space are Unicode's, as in Python's str.lower and str.split. What is no
 * text, zeros and bytes that are not UTF-8, becomes U+FFFD, as by Python's errors="replace". */
typedef struct sl_tokenizer sl_tokenizer;

/* Errors: SL_ERR_MEMORY. */
sl_status sl_tokenizer_create(sl_tokenizer **out);
void sl_tokenizer_destroy(sl_tokenizer **tokenizer);

/* Begins a line of `bytes` bytes, which is copied, and forgets the line before. A line may contain
 * line ends (they are white space) and zeros (they are not). Errors: SL_ERR_MEMORY. */
sl_status sl_tokenizer_start(sl_tokenizer *tokenizer, const char *line, size_t bytes);

/* The line's next token, or false after its last. The token lives until the next start. Allocates
 * nothing. */
bool sl_tokenizer_next(sl_tokenizer *tokenizer, sl_token *out);

/* ---- Vocabulary ------------------------------------------------------------------------- */

/* Tokens with their ids, and how a text becomes them. Only read after it was made: threads may
 * share it. Of two kinds:
 *
 *   - words, as sl_tokenizer finds them: torchtext.vocab.build_vocab_from_iterator(…,
 *     specials=["<unk>"]) with <unk> as default index: ids run from 0 (<unk>) by falling frequency,
 *     and by code point where frequencies are equal;
 *   - a BPE, the tokenizer of a model of today: a text is split into pieces (words with the space
 *     before them, numbers, white space, …), and in each the bytes, which are tokens, merge to
 *     longer tokens, those first that are first in the tokenizer's list. In one of SentencePiece's
 *     kind the characters merge, and those that are no token are bytes. It gives the ids that
 *     Hugging Face's tokenizers and OpenAI's tiktoken give. */
typedef struct sl_vocab sl_vocab;

enum { SL_VOCAB_UNKNOWN = 0 }; /* of words: the id of <unk>, and of every word that is not listed */

/* How a BPE splits texts, by name, then NULL: "gpt2"; "smollm", whose digits are pieces of their
 * own; "cl100k" of GPT-4 and Llama 3; "qwen2" of Qwen2, 2.5 and 3, and "qwen3.5", whose ids are
 * those of the text's NFC; "o200k" of GPT-4o. */
extern const char *const sl_splitters[];

/* Opens a directory with tokenizer.json, or else with vocab.json and merges.txt, as GPT-2 has them,
 * or else with tokenizer.model; or one file: a tokenizer.json, SentencePiece's file of a BPE with
 * byte fallback (Llama 2's tokenizer.model), or a rank file of tiktoken (lines "BASE64 RANK"; Llama
 * 3's tokenizer.model), which are told apart by what they hold. `splitter` is a name of
 * sl_splitters, or NULL: a rank file needs one, for vocab.json it is gpt2, and others have their
 * own.
 * Errors: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_MEMORY; SL_ERR_INVALID for the splitter;
 * SL_ERR_UNSUPPORTED for another kind of tokenizer, or other rules, which are printed;
 * SL_ERR_FORMAT, with the file and the line or the token, where ids are not 0, 1, 2 and so on, a
 * byte is no token, or a token has more than 1,024 bytes. */
sl_status sl_vocab_open(const char *path, const char *splitter, sl_vocab **out);

bool sl_vocab_has_words(const sl_vocab *vocab); /* false: it is a BPE */

/* Writes a tokenizer.json: Hugging Face's library tokenizers opens it and gives the same ids. Of
 * words it is of kind WordLevel, and its normalizer and pre_tokenizer say what sl_tokenizer does.
 * An older file is replaced only when the new one is complete. Errors: as sl_safetensors_save has
 * them for a file that cannot be written. */
sl_status sl_vocab_save(const sl_vocab *vocab, const char *path);
void sl_vocab_destroy(sl_vocab **vocab);

int32_t sl_vocab_size(const sl_vocab *vocab); /* <unk> included: a model's ntokens */

/* The id of a word, SL_VOCAB_UNKNOWN where it is not listed, or of a BPE's token by its bytes, -1
 * where it has none; and the token of an id, which lives as long as the vocabulary and has a 0
 * after its last byte ({NULL, 0} for an id out of range). */
int32_t sl_vocab_id(const sl_vocab *vocab, const char *text, size_t bytes);
sl_token sl_vocab_token(const sl_vocab *vocab, int32_t id);

/* The id of a BPE's end of text: the eos_token of its tokenizer_config.json, or <|endoftext|> or
 * <|end_of_text|>; -1: it has none. */
int32_t sl_vocab_end(const sl_vocab *vocab);
bool sl_vocab_is_special(const sl_vocab *vocab, int32_t id); /* a mark of a BPE, not text */

/* The checksum of all that decides the ids of a text, and of no more: a tokenizer has the same in
 * each form that it can be written in. Into text [SL_VOCAB_CHECKSUM_BYTES], 32 hexadecimal digits.
 * Errors: SL_ERR_MEMORY. */
enum { SL_VOCAB_CHECKSUM_BYTES = 33 };
sl_status sl_vocab_checksum(const sl_vocab *vocab, char *text);

/* The checksum of its tokenizer_config.json, which decides how conversations are written and where
 * texts end; without one, that of no bytes. Into text [SL_VOCAB_CHECKSUM_BYTES], which it returns.
 */
const char *sl_vocab_settings_checksum(const sl_vocab *vocab, char *text);

/* Counts tokens and makes a vocabulary of them. */
typedef struct sl_vocab_builder sl_vocab_builder;

/* Errors: SL_ERR_MEMORY. */
sl_status sl_vocab_builder_create(sl_vocab_builder **out);
void sl_vocab_builder_destroy(sl_vocab_builder **builder);

/* Counts one token, which is copied when it is new. `provisional` (NULL: not wanted) is its number
 * in order of first appearance, from 0. With it a text is read once: the same pass counts tokens
 * and stores their numbers, which final_ids turns into ids. Errors: SL_ERR_INVALID (an empty token,
 * one that is not UTF-8, or one with a zero or with ASCII white space), SL_ERR_MEMORY. */
sl_status sl_vocab_builder_add(sl_vocab_builder *builder, const char *text, size_t bytes,
                               int32_t *provisional);
int32_t sl_vocab_builder_size(const sl_vocab_builder *builder); /* provisional numbers in use */

/* The vocabulary of what was counted. `final_ids` (NULL: not wanted) has room for
 * sl_vocab_builder_size ids and gets the id of each provisional number. The builder is unchanged.
 * Errors: SL_ERR_MEMORY. */
sl_status sl_vocab_builder_finish(const sl_vocab_builder *builder, int32_t *final_ids,
                                  sl_vocab **out);

/* ---- Token ids of a text ---------------------------------------------------------------- */

typedef struct sl_tokens {
    int32_t *ids; /* [count], freed by sl_tokens_free alone: they may be mapped */
    int64_t count;
    size_t mapped_bytes;   /* of a file without a name that has the ids of a large text; 0: they are
                              allocated */
    int64_t line_count;    /* lines of the text, those without tokens included */
    int64_t unknown_count; /* of words: how many of the ids are SL_VOCAB_UNKNOWN */
    int64_t invalid_bytes; /* of the text: those that are not UTF-8 */
} sl_tokens;

void sl_tokens_free(sl_tokens *tokens); /* leaves zeros */

/* The ids of a text in memory (such as a prompt), possibly none. Bytes that are not UTF-8 become
 * U+FFFD as by Python's errors="replace", and are counted. What looks like a special token of a BPE
 * is text, unless `special`, which also adds those that the tokenizer has before and behind a text.
 * Errors: SL_ERR_MEMORY; SL_ERR_UNSUPPORTED for a word of 2 GiB. */
sl_status sl_tokens_encode(const sl_vocab *vocab, const char *text, size_t bytes, bool special,
                           sl_tokens *out);

typedef struct sl_message {
    const char *role; /* "user", "assistant", "system" */
    const char *content;
} sl_message;

/* The ids of a conversation of at least one message, by the tokenizer's template (as sl_rows_read
 * has them), up to where the assistant's next answer begins. Errors: SL_ERR_INVALID without a
 * message, SL_ERR_NOT_FOUND where there is no template, SL_ERR_UNSUPPORTED for another one,
 * SL_ERR_MEMORY. */
sl_status sl_chat_encode(const sl_vocab *vocab, const sl_message *messages, size_t count,
                         sl_tokens *out);

/* The text of ids, *text with a 0 behind its *bytes, to be freed with free: words with a blank
 * between them; of a BPE the bytes of its tokens, which are the text's, or of its NFC; of
 * SentencePiece's kind without the space that encoding put before the first word. Errors:
 * SL_ERR_MEMORY. */
sl_status sl_tokens_decode(const sl_vocab *vocab, const int32_t *ids, int64_t count, char **text,
                           size_t *bytes);

/* ---- Training a BPE --------------------------------------------------------------------- */

typedef struct sl_bpe_training {
    int32_t vocab_size;         /* tokens, at least 256 and the special ones */
    const char *const *special; /* [special_count] tokens of 2 to 1,024 printable ASCII characters
                                   without blanks; the first is the end of a text. Borrowed */
    int special_count;
    const char *splitter; /* a name of sl_splitters; NULL: gpt2 */
} sl_bpe_training;

typedef struct sl_bpe_trained {
    int32_t vocab_size;      /* fewer than asked for where no pair is left in the texts */
    int64_t different_words; /* in the texts, as the splitter finds them */
    int64_t invalid_bytes;   /* of the texts: those that are not UTF-8 and became U+FFFD */
} sl_bpe_trained;

/* Makes a byte-level BPE of text files [count] and writes it to a directory: tokenizer.json, and
 * tokenizer_config.json, which names the first special token as eos_token. The ids are first those
 * of the special tokens, then of the 256 bytes, in the order of the characters that stand for them,
 * and then of tokens of at most 1,024 bytes that are made of two others, again and again of the
 * pair that is most frequent, of equals that of the lowest ids. It is the tokenizer that Hugging
 * Face's BpeTrainer makes of the files with the same special tokens, the initial alphabet of
 * ByteLevel and max_token_length 1025: files are read line by line, special tokens in them are
 * text. `result` may be NULL.
 *
 * What stands under the directory's name is replaced if it is an empty directory or one that this
 * function has written, and then when the new one is complete. Errors: SL_ERR_INVALID for the
 * training's values, for no file, and for what stands there otherwise; SL_ERR_FORMAT for a file
 * that is empty or no text; SL_ERR_NOT_FOUND, SL_ERR_IO; SL_ERR_UNSUPPORTED for different words of
 * 4 GiB; SL_ERR_MEMORY. */
sl_status sl_bpe_train(const char *const *paths, int count, const sl_bpe_training *training,
                       const char *directory, sl_bpe_trained *result);

/* ---- Corpus ----------------------------------------------------------------------------- */

typedef enum sl_split { SL_SPLIT_TRAIN, SL_SPLIT_VALID, SL_SPLIT_TEST } sl_split;
enum { SL_SPLITS = 3 };

const char *sl_split_name(sl_split split); /* "train", "valid", "test" */

/* A text with its splits, called `data` below, is either
 *
 *   - a directory with a file for each: wiki.{train,valid,test}.tokens where one of these exists,
 *     else {train,valid,test}.txt; or
 *   - one file, which is divided at line ends: lines that begin in the first 90% of its bytes are
 *     for training, those of the next 5% for validation, those of the last 5% for the test. */

/* The path of a split's file: a directory's, or the one file itself. `*out` is the caller's, to be
 * freed with free. Errors: SL_ERR_NOT_FOUND (no such directory or file, none of these files in the
 * directory, or the split's missing beside the others), SL_ERR_INVALID (a pipe or a device),
 * SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_split_path(const char *data, sl_split split, char **out);

/* The ids of a split: its lines' tokens one after the other. Errors: as sl_split_path;
 * SL_ERR_FORMAT where the file is no regular one, is empty or has no token, where more than a third
 * of its bytes are no text (not UTF-8, or control characters), and where no line begins in that
 * part of the one file. */
sl_status sl_split_read(const sl_vocab *vocab, const char *data, sl_split split, sl_tokens *out);

/* ---- Rows of ids ------------------------------------------------------------------------ */

/* Data may be rows instead of a text: JSON lines, one row each, told apart by their keys. Blank
 * lines are skipped.
 *
 *   {"input_ids": [...], "labels": [...]}   the label of a token is the target of the position
 * before it (transformers' labels, which are not shifted either); -100 has no loss; without
 * "labels" they are the ids
 *   {"text": "..."}        all of the text, and the end of text (sl_vocab_end)
 *   {"prompt": "...", "completion": "..."}  the completion and the end; the prompt has no loss
 *   {"messages": [{"role": "user", "content": "..."}, ...]}  a conversation by the tokenizer's
 *                          template, ChatML or Llama 3's; what the assistant says has a loss
 *
 * Before each of the last three stand the special tokens that the tokenizer puts there. */
typedef struct sl_rows sl_rows;

/* Or the data are token files, mapped into memory: llm.c's, Megatron's (.bin and .idx), and with a
 * type nanoGPT's, which have no header. Several are one stream, in the order of their names: after
 * train.bin, or train_000000.bin, come train_000001.bin, train_000002.bin and so on.
 * A row has `length` tokens of it, and the next begins with its last target. */
typedef enum sl_token_type {
    SL_TOKENS_BY_HEADER,
    SL_TOKENS_UINT16,
    SL_TOKENS_UINT32
} sl_token_type;

extern const char *const sl_token_type_names[]; /* "header", "uint16", "uint32", NULL */

typedef struct sl_rows_options {
    int64_t ntokens;   /* ids must be below it; 0: any */
    int64_t positions; /* most tokens of a row; 0: any. Longer texts are cut into several rows */
    const sl_vocab *vocab; /* of text; NULL: there are ids alone */
    int64_t length;        /* tokens of a row of token files */
    sl_token_type token_type;
    bool no_mask_prompt; /* prompts, and what others than the assistant say, have a loss too */
    int threads;         /* that read lines; 0: one for each processor that the process may use */
} sl_rows_options;

/* The path of a split's rows: `data` itself for every split, if its name ends in ".jsonl" or
 * ".bin", or DIR/{train,valid,test}.jsonl of a directory, if that is there, or such a .bin ("val"
 * is "valid" too), or the first of several; else NULL. `*out` is the caller's, to be freed with
 * free. Errors: SL_ERR_MEMORY. */
sl_status sl_rows_path(const char *data, sl_split split, char **out);

/* Reads a file's rows, or opens token files. Errors, with the file's line: SL_ERR_FORMAT for what
 * is no such row, and for a file without rows or without any target; SL_ERR_UNSUPPORTED for another
 * template of conversations; SL_ERR_NOT_FOUND, also for text without a tokenizer, or a conversation
 * without a template; SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_rows_read(const char *path, const sl_rows_options *options, sl_rows **out);
void sl_rows_destroy(sl_rows **rows);

typedef struct sl_tokens_writing {
    bool resume; /* go on where an earlier call with the same texts was cut off */
    /* Is told how many of the texts' bytes are done, by one thread or another at a time; NULL:
     * nobody is. */
    void (*progress)(void *context, uint64_t done, uint64_t bytes);
    void *context;
} sl_tokens_writing;

typedef struct sl_tokens_written {
    int64_t tokens;
    int64_t files;
    int64_t invalid_bytes;  /* of the texts: those that are not UTF-8 */
    uint64_t resumed_bytes; /* of the texts: those that an earlier call had done */
} sl_tokens_written;

/* Writes the tokens of text files to a token file in llm.c's form: of uint16 where the vocabulary
 * has at most 65,536 tokens, else of uint32. Behind each text stands the end of text, where the
 * tokenizer has one (sl_vocab_end). Texts may be of any size: they are read in blocks, which end
 * where no token lies across. After 2^31 - 1 tokens the next file begins: NAME_000001.bin after
 * NAME.bin.
 *
 * Beside it, NAME.manifest.json has checksums of the tokenizer, the texts and the files.
 * sl_rows_read holds token files to it: they need their own tokenizer.
 *
 * Older files are replaced only when all are whole. A call that is cut off, by a kill or by any
 * error, leaves what it has recorded under temporary names; the next call removes that, or goes on
 * there if it is to resume, with the same result as of one call. Where nothing was cut off and the
 * files are already those of these texts, by their checksums, it changes nothing. `writing` may be
 * NULL.
 *
 * Errors: as sl_tokens_encode; SL_ERR_NOT_FOUND, SL_ERR_IO; SL_ERR_FORMAT for a text that is empty,
 * in which nothing is a token, or of which more than a third is not UTF-8, where another file has
 * the manifest's name, and to resume where what was written is not what its record says;
 * SL_ERR_CONFLICT where another process writes the file; SL_ERR_INVALID where it is one of the
 * texts, or a next file would replace one of other tokens, and to resume with another tokenizer or
 * other texts; SL_ERR_UNSUPPORTED where the tokens may need a next file, and none can follow the
 * name. */
sl_status sl_tokens_write(const sl_vocab *vocab, const char *const *texts, int count,
                          const char *path, const sl_tokens_writing *writing,
                          sl_tokens_written *out);

typedef struct sl_corpus sl_corpus;

/* Reads the three splits. `vocab` is borrowed for the corpus's life; NULL: the corpus makes its own
 * from the training text. Errors: as sl_split_read. */
sl_status sl_corpus_load(const char *data, const sl_vocab *vocab, sl_corpus **out);
void sl_corpus_destroy(sl_corpus **corpus);

/* What the corpus has; these live as long as it. */
const sl_vocab *sl_corpus_vocab(const sl_corpus *corpus);
const sl_tokens *sl_corpus_tokens(const sl_corpus *corpus, sl_split split);
/* The path of the split's file; of a part of a file, with which part behind it: "a.txt (the first
 * 90%)". */
const char *sl_corpus_name(const sl_corpus *corpus, sl_split split);

/* ---- Batches ---------------------------------------------------------------------------- */

/* The tutorials' batchify and get_batch. The tokens are cut into `columns` runs of equal length
 * that lie side by side (those left over at the end are dropped), and the runs into blocks of
 * `bptt` positions, the last one possibly shorter. Of arange(26) in 4 columns:
 *
 *     column 0   0  1  2  3  4  5        block 0 with bptt 3     inputs 0 1 2    targets 1 2 3
 *     column 1   6  7  8  9 10 11                                       6 7 8            7 8 9
 *     column 2  12 13 14 15 16 17                                      …                …
 *     column 3  18 19 20 21 22 23        block 1                 inputs 3 4      targets 4 5
 *
 * A plain value, only to be read; the tokens are borrowed. */
typedef struct sl_batches {
    const int32_t *tokens; /* column 0 begins here */
    int64_t columns;       /* N */
    int64_t column_length; /* tokens in a column */
    int64_t stride;        /* tokens from the start of a column to the next one's */
    int64_t bptt;          /* T of every block but a last short one */
} sl_batches;

/* Errors: SL_ERR_INVALID where columns or bptt is below 1, or a column has no `bptt` tokens and one
 * more for the last target. */
sl_status sl_batchify(const int32_t *tokens, int64_t count, int64_t columns, int64_t bptt,
                      sl_batches *out);

/* Shard `shard` of `shards`, as batches of its own. A shard is what the data-parallel tutorial's
 * batchify gives a rank: every column's length is divided evenly, and a shard has one range of each
 * (what is left over at the end of the columns is dropped). The columns above in 2 shards:
 *
 *     shard 0    column 0   0  1  2      column 1   6  7  8        …     column 3  18 19 20
 *     shard 1    column 0   3  4  5      column 1   9 10 11        …     column 3  21 22 23
 *
 * Errors: SL_ERR_INVALID where there is no such shard, and where such a range has no `bptt` tokens
 * and one more for the last target. */
sl_status sl_batches_shard(const sl_batches *batches, int shard, int shards, sl_batches *out);

int64_t sl_batches_count(const sl_batches *batches); /* of blocks */

/* T of block `index` (0 to count - 1): bptt, or what is left for the last. */
int64_t sl_batches_block_length(const sl_batches *batches, int64_t index);

/* Writes block `index`: inputs and targets, each [N, T] with the batch first. targets[n][t] is the
 * token that follows inputs[n][t] in its column. `targets` may be NULL. Errors: SL_ERR_INVALID
 * where there is no such block; nothing is then written. */
sl_status sl_batches_block(const sl_batches *batches, int64_t index, int32_t *inputs,
                           int32_t *targets);

/* ---- Order of samples --------------------------------------------------------------------- */

#define SL_MAX_SHUFFLED (INT64_C(1) << 62)

/* The sample (0 to count - 1) at `place` (the same) of an epoch's order: for each seed and epoch a
 * pseudorandom permutation, as PyTorch's DistributedSampler has by set_epoch. It is computed from
 * the arguments alone, in about a microsecond, so that any rank knows any place of it, also after a
 * resume. `count` is at most SL_MAX_SHUFFLED. */
int64_t sl_shuffled(int64_t place, int64_t count, uint64_t seed, int64_t epoch);

/* ---- Sources ------------------------------------------------------------------------------- */

enum { SL_MAX_SOURCES = 64 };

/* One of the places that data come from. */
typedef struct sl_source {
    const char *name; /* NULL: the data are this path alone */
    double weight;    /* above 0; 1 of a path alone */
    const char *path; /* not empty */
} sl_source;

typedef struct sl_sources {
    sl_source *source; /* [count], at least one */
    int count;
    char *text; /* has the names and the paths */
} sl_sources;

/* Whether a text begins as a source does: "NAME=WEIGHT:", of a name of letters, digits, "_", "."
 * and "-". The path of a file that is called so has "./" before it. */
bool sl_is_source(const char *text);

/* The sources that `data` has: "a=0.7:DIR,b=0.3:FILE", or a path alone. *out is to be freed with
 * sl_sources_free after SL_OK. Errors: SL_ERR_INVALID, one sentence that begins with "data", for a
 * weight that is no number above 0, a name that is there twice, too many, or a path among sources;
 * SL_ERR_MEMORY. */
sl_status sl_sources_parse(const char *data, sl_sources *out);
void sl_sources_free(sl_sources *sources); /* leaves zeros */

SL_API_END

#endif
