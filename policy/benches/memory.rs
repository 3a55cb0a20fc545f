//! Cost of placement in the memory of a V100 (25 GB) and of an H200.

use divan::{Bencher, black_box};
use policy::memory::{Memory, OwnerId, Rule, Settings, UNIT, arena_of};

fn main() {
    divan::main();
}

const V100: u64 = 25_000_000_000;
const H200: u64 = arena_of(141_000_000_000);

/// A model of 266 MB: 13 blocks of 20 MiB and one of 2 MiB.
const SIZES: [u64; 14] = {
    let mut sizes = [10 * UNIT; 14];
    sizes[0] = UNIT;
    sizes
};

/// A full arena in which the oldest model is repeatedly replaced.
#[divan::bench(args = [(Rule::Partitions, V100), (Rule::Partitions, H200), (Rule::FreeList, V100)])]
fn a_model_in_place_of_another(bencher: Bencher<'_, '_>, (rule, arena): (Rule, u64)) {
    let (mut memory, owners) = full(rule, arena);
    let mut n = 0;
    bencher.bench_local(|| {
        n = (n + 1) % owners;
        memory.free_owner(OwnerId(n));
        for bytes in SIZES {
            black_box(memory.alloc(OwnerId(n), bytes)).expect("the freed amount fits");
        }
    });
}

/// A trial whether a model fits after the eviction of one model, and of two.
#[divan::bench(args = [V100, H200])]
fn a_trial_of_two_victims(bencher: Bencher<'_, '_>, arena: u64) {
    let (mut memory, owners) = full(Rule::Partitions, arena);
    let sizes = [SIZES, SIZES].concat();
    let mut n = 0;
    bencher.bench_local(|| {
        n = (n + 7) % (owners - 1);
        let mut trial = memory.trial();
        trial.free_owner(OwnerId(n));
        let one = trial.fits(OwnerId(owners), &sizes).is_ok();
        trial.free_owner(OwnerId(n + 1));
        black_box((one, trial.fits(OwnerId(owners), &sizes).is_ok()))
    });
}

fn full(rule: Rule, arena: u64) -> (Memory, u32) {
    let settings = Settings {
        rule,
        ..Settings::new(arena)
    };
    let mut memory = Memory::new(settings).expect("good settings");
    let mut owners = 0;
    while memory.fits(OwnerId(owners), &SIZES).is_ok() {
        for bytes in SIZES {
            memory.alloc(OwnerId(owners), bytes).expect("it fits");
        }
        owners += 1;
    }
    (memory, owners)
}
