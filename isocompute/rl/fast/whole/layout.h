// Sizes that follow from the compiler's constants, what the kernel is given, and where it keeps what in shared memory.

constexpr int WARPS = 8, THREADS = 32 * WARPS, ROWS = 16 * TILES;
constexpr int NARROW = WIDTH / (8 * WARPS);  // tiles of 8 columns of the residual stream that a warp has
constexpr int OWN_HEADS = HEADS / RANKS, OWN_GROUPS = GROUPS / RANKS, OWN_INNER = INNER / RANKS, SHARE = HEADS / GROUPS;
constexpr int Q = OWN_HEADS * HEAD, KV = OWN_GROUPS * HEAD, QKV = Q + 2 * KV;  // columns
constexpr int Q_INPUTS = (Q + 31) / 32 * 32;
constexpr int NORMED_STRIDE = (WIDTH > Q_INPUTS ? WIDTH : Q_INPUTS) + 8, QKV_STRIDE = QKV + 8;
constexpr int MIXED_STRIDE = OWN_INNER + 8, LOGITS_STRIDE = (VOCABULARY + 7) / 8 * 8 + 4;
constexpr int SLOT = 4 * KV + 16;  // bytes of a token's keys and values, so that eight of them begin at other banks
constexpr int SLAB = 64;           // inputs of a stage of weights that has all columns; others have 64 columns
constexpr int STAGE = 2 * SLAB * WIDTH;
constexpr int SIDES = TILES >= 4 ? 2 : 1;           // a product's rows are divided among so many groups of warps
constexpr int TALL = TILES / SIDES, BROAD = SIDES;  // tiles of rows, and of columns, of a warp's part of a stage
constexpr int EXCHANGED = TILES * NARROW * THREADS * (FEW ? 2 : 4);  // numbers that a block sends to another
constexpr int PARTS = OWN_GROUPS / TASK_GROUPS;  // warps that attend for one row, each with some of its heads
constexpr int WAVE = WARPS / PARTS;              // rows that attend at the same time
constexpr int NORMS = (2 * LAYERS + 1) * WIDTH, HEAD_NORMS = QK_NORM ? 2 * LAYERS * HEAD : 0, ANGLES = HEAD;
constexpr bool KEEP_ANGLES = AT_ANGLES > 0;

struct Inputs {
    const u8 *weights;             // cells × ranks × stages
    const u16 *norms;              // cells × (layers × (before attention, before the inner layer), last) × width
    const u16 *head_norms;         // cells × layers × (q, k) × head
    const u16 *bias;               // cells × ranks × layers × qkv
    const u16 *embedding;          // cells × vocabulary × width
    const float *cosines, *sines;  // positions × half a head
    const u8 *prompts;             // ranks × layers × problems × prompt slots × SLOT
    const int *padding;            // problems
    const float *last;             // problems × width: residual stream of the prompts' last tokens
    u8 *cache;                     // ranks × layers × rows × new slots × SLOT
    const int *stops;
    const i64 *seed, *first_row;  // cells
    i64 *tokens;                  // rows × new slots
    float *logprobs;
    int *lengths, *stopped;  // rows
    int stop_count, problems, per_prompt, prompt_slots, new_slots, cell_rows, unit_rows;
    float temperature;
};

// Where this block's rows are.
struct Unit {
    int cell, first, rows, all, rank;  // `first` counts in the cell; `all` rows of all cells

    DEVICE int row(const Inputs &in, int local) const { return cell * in.cell_rows + first + local; }
};

DEVICE Unit unit_of(const Inputs &in) {
    int number = block_index() / RANKS, per_cell = (in.cell_rows + in.unit_rows - 1) / in.unit_rows;
    Unit out;
    out.cell = number / per_cell;
    out.first = number % per_cell * in.unit_rows;
    out.rows = in.cell_rows - out.first < in.unit_rows ? in.cell_rows - out.first : in.unit_rows;
    out.all = in.problems * in.per_prompt;
    out.rank = RANKS > 1 ? cluster_rank() : 0;
    return out;
}

// Shared memory.
struct Shared {
    u8 *memory;

    DEVICE u16 *normed() const { return (u16 *)(memory + AT_NORMED); }  // and what attention makes of it
    DEVICE u16 *wide() const { return (u16 *)(memory + AT_WIDE); }      // q, k and v; the inner layer; logits
    DEVICE float *parts() const { return (float *)(memory + AT_PARTS); }
    DEVICE u16 *norms() const { return (u16 *)(memory + AT_NORMS); }
    DEVICE u16 *head_norms() const { return norms() + NORMS; }
    DEVICE float *angles(int row) const { return (float *)(memory + AT_ANGLES) + row * ANGLES; }  // cosines, then sines
    DEVICE float *inbox(int turn, int from) const {
        return (float *)(memory + AT_INBOX) + (turn * (RANKS - 1) + from) * EXCHANGED;
    }
    DEVICE u8 *weights(int stage) const { return memory + AT_WEIGHTS + stage * STAGE; }
    DEVICE u8 *block(int stage) const { return memory + AT_CACHE + stage * SLOTS * SLOT; }
    DEVICE u64 *weights_full() const { return (u64 *)(memory + AT_BARRIERS); }
    DEVICE u64 *weights_empty() const { return weights_full() + WEIGHT_STAGES; }
    DEVICE u64 *cache_full() const { return weights_empty() + WEIGHT_STAGES; }
    DEVICE u64 *cache_empty() const { return cache_full() + CACHE_STAGES; }
    DEVICE u64 *drawn() const { return cache_empty() + CACHE_STAGES; }
    DEVICE u64 *arrived() const { return drawn() + 1; }           // two
    DEVICE int *asked() const { return (int *)(arrived() + 2); }  // blocks of the cache that have been asked for
    DEVICE int *going() const { return asked() + 1; }
    DEVICE int *token() const { return going() + ROWS; }
    DEVICE int *prompt_length() const { return token() + ROWS; }
    DEVICE int *problem() const { return prompt_length() + ROWS; }
    DEVICE volatile int *quit() const { return problem() + ROWS; }
};

DEVICE void wait(u64 *barrier, int parity) {
    while (!barrier_passed(barrier, parity)) {
    }
}

DEVICE float low_of(u32 pair) { return from_bits(pair << 16); }
DEVICE float high_of(u32 pair) { return from_bits(pair & 0xffff0000u); }
DEVICE float widened(u16 x) { return from_bits((u32)x << 16); }
DEVICE float rounded(float x) { return low_of(rounded2(x, 0.0f)); }
DEVICE u16 rounded_bits(float x) { return (u16)rounded2(x, 0.0f); }

// Which rows are still going.
DEVICE u64 active_rows(const Shared &shared, int lane) {
    u64 out = votes(lane < ROWS && shared.going()[lane < ROWS ? lane : 0]);
    if (ROWS > 32) out |= (u64)votes(lane + 32 < ROWS && shared.going()[lane + 32 < ROWS ? lane + 32 : 0]) << 32;
    return out;
}
