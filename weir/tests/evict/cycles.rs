//! Random allocations, uses and moves: whatever their order, memory that a program has written reads the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use softgpu_harness::node::Node;
use softgpu_harness::puppet::Puppet;
use testing::variables::{number, print_line};
use testing::{Random, until};

use crate::{GRANULE, node, order, process, program};

/// Number of allocations that the program may hold.
const SLOTS: u64 = 24;
/// Most memory that it holds, in granules.
const GRANULES_MAX: u64 = 1_200;

/// Number of operations of a run whose length is not set. A number, not a time, so that a slow machine tests as much as a fast one.
const OPERATIONS: u64 = 200;

/// Memory of the program: number of its words, the value in all of them, and whether the program has mapped it itself.
#[derive(Debug, Clone, Copy)]
struct Piece {
    words: u64,
    value: u64,
    is_own: bool,
}

/// What the program has allocated, by slot.
#[derive(Debug, Default)]
struct Held {
    pieces: BTreeMap<u64, Piece>,
}

impl Held {
    fn granules(&self) -> u64 {
        let pieces = self.pieces.values();
        pieces
            .map(|piece| (4 * piece.words).div_ceil(GRANULE))
            .sum()
    }

    /// Checks the sum of a slot's words.
    fn check(&self, puppet: &mut Puppet, slot: u64) {
        let Piece { words, value, .. } = self.pieces[&slot];
        let sum = puppet.run(&format!("sum {slot} {words}")).number(0);
        assert_eq!(sum, words * value, "slot {slot} of {words} words");
    }
}

/// Returns a random size in words: pieces of slabs, single granules, or several handles.
fn size(random: &mut Random) -> u64 {
    let granule = GRANULE / 4;
    match random.below(4) {
        0 => 1 + random.below(300),
        1 => 1 + random.below(granule),
        2 => granule * (1 + random.below(20)) + random.below(3),
        _ => granule * (1 + random.below(600)),
    }
}

fn act(random: &mut Random, node: &mut Node, puppet: &mut Puppet, held: &mut Held) -> &'static str {
    let slots: Vec<u64> = held.pieces.keys().copied().collect();
    let any = |random: &mut Random| slots[random.index(slots.len())];
    match random.below(100) {
        0..=19 => {
            let free = (0..SLOTS).find(|slot| !held.pieces.contains_key(slot));
            let words = size(random);
            let Some(slot) = free.filter(|_| held.granules() + words * 4 / GRANULE < GRANULES_MAX)
            else {
                return "full";
            };
            let is_own = random.below(3) == 0;
            let verb = if is_own { "own" } else { "alloc" };
            puppet.run(&format!("{verb} {slot} {}", 4 * words));
            let value = random.below(1 << 20);
            puppet.run(&format!("fill 0 {slot} {words} {value}"));
            let piece = Piece {
                words,
                value,
                is_own,
            };
            held.pieces.insert(slot, piece);
            verb
        }
        20..=29 if !slots.is_empty() => {
            let slot = any(random);
            let piece = held.pieces.remove(&slot).unwrap();
            if !piece.is_own {
                puppet.run(&format!("free {slot}"));
                return "free";
            }
            // Unlike a free, an unmapping waits for nothing.
            puppet.run("sync 0");
            puppet.run(&format!("disown {slot}"));
            "disown"
        }
        30..=44 if !slots.is_empty() => {
            let slot = any(random);
            let value = random.below(1 << 20);
            let piece = held.pieces.get_mut(&slot).unwrap();
            piece.value = value;
            puppet.run(&format!("fill 0 {slot} {} {value}", piece.words));
            if piece.is_own && random.below(2) == 0 {
                puppet.run("sync 0");
                puppet.run(&format!("remap {slot}"));
                return "remap";
            }
            "fill"
        }
        45..=69 if !slots.is_empty() => {
            let slot = any(random);
            held.check(puppet, slot);
            "sum"
        }
        70..=93 => {
            let (status, answer) = order(node, "evict");
            // The windows for what was allocated just now may be on their way, and so may the last groups of a restore.
            let is_known =
                ["no-memory", "draining"].contains(&answer["reason"].as_str().unwrap_or(""));
            assert!(status == 200 || is_known, "{answer}");
            "evict"
        }
        94..=98 => {
            let (status, answer) = order(node, "restore");
            assert_eq!(status, 200, "{answer}");
            "restore"
        }
        99 => {
            node.kill_agent();
            if random.below(2) == 0 && !slots.is_empty() {
                held.check(puppet, any(random));
            }
            node.start();
            until("the process is connected", || {
                process(node)["pid"].is_number()
            });
            "agent killed"
        }
        _ => "nothing",
    }
}

/// Runs [`OPERATIONS`] operations, or as many as fit into `WEIR_EVICT_SECONDS` whole seconds. `WEIR_EVICT_SEED` repeats a run.
///
/// Ten minutes: `WEIR_EVICT_SECONDS=600 cargo test --release -p weir --test evict cycles -- --nocapture`.
#[test]
fn random_cycles_change_no_byte() {
    #[expect(clippy::disallowed_methods, reason = "another seed each time")]
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("WEIR_EVICT_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos()));
    let length = number("WEIR_EVICT_SECONDS").map(Duration::from_secs);
    print_line(&format!("WEIR_EVICT_SEED={seed}"));
    let mut random = Random(seed);
    // Everything at once: copies ahead, and kernels amid restores.
    let mut node = node("[memory]\nseal-after = \"20ms\"\nstream-restores = \"poisoned\"\n");
    let mut puppet = program(&node);
    let mut held = Held::default();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let begin = Instant::now();
    let mut done = 0;
    while length.map_or(done < OPERATIONS, |length| begin.elapsed() < length) {
        done += 1;
        let what = act(&mut random, &mut node, &mut puppet, &mut held);
        *counts.entry(what).or_default() += 1;
    }
    for &slot in held.pieces.keys() {
        held.check(&mut puppet, slot);
    }
    print_line(&format!("{counts:?}; {} granules", held.granules()));
    assert!(counts["evict"] > 10, "{counts:?}");
}
