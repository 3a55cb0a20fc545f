//! Random allocations, uses and moves: whatever their order, memory that a program has written reads the same.

use std::collections::{BTreeMap, BTreeSet};
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

/// Streams of the program, beside the one that waits for them.
const STREAMS: u64 = 3;

/// How memory was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Allocated,
    /// Created and mapped by the program.
    Own,
    /// Of the device's pool, which stays there.
    Pool,
}

/// Memory of the program: number of its words, the value in all of them, and the value which the graph of its slot writes, if there is one.
#[derive(Debug, Clone, Copy)]
struct Piece {
    words: u64,
    value: u64,
    kind: Kind,
    graph: Option<u64>,
}

/// What the program has allocated, by slot.
#[derive(Debug, Default)]
struct Held {
    pieces: BTreeMap<u64, Piece>,
    /// Slots to which something writes that was not waited for.
    written: BTreeSet<u64>,
    /// Whether some memory is of the pool. While any is, restores are not streamed.
    uses_pool: bool,
}

impl Held {
    fn granules(&self) -> u64 {
        let pieces = self.pieces.values();
        pieces
            .map(|piece| (4 * piece.words).div_ceil(GRANULE))
            .sum()
    }

    /// Waits for all streams if something in one of them writes to the slot.
    fn wait(&mut self, puppet: &mut Puppet, slot: u64) {
        if self.written.contains(&slot) {
            puppet.run("sync_all");
            self.written.clear();
        }
    }

    /// Checks the sum of a slot's words.
    fn check(&mut self, puppet: &mut Puppet, slot: u64) {
        self.wait(puppet, slot);
        let Piece { words, value, .. } = self.pieces[&slot];
        let sum = puppet.run(&format!("sum {slot} {words}")).number(0);
        assert_eq!(sum, words * value, "slot {slot} of {words} words");
    }

    /// Frees a slot.
    fn free(&mut self, puppet: &mut Puppet, slot: u64) -> &'static str {
        // Unlike a free, an unmapping waits for nothing.
        self.wait(puppet, slot);
        let piece = self.pieces.remove(&slot).unwrap();
        if piece.graph.is_some() {
            puppet.run(&format!("drop {slot}"));
        }
        let (verb, line) = match piece.kind {
            Kind::Allocated => ("free", format!("free {slot}")),
            Kind::Own => ("disown", format!("disown {slot}")),
            Kind::Pool => ("release", format!("release 0 {slot}")),
        };
        puppet.run(&line);
        verb
    }

    /// Writes a value to a slot, in some stream, by a kernel or as the graph of the slot, which writes the value that it was captured with.
    fn fill(&mut self, puppet: &mut Puppet, random: &mut Random, slot: u64) -> &'static str {
        // What an earlier kernel in another stream writes to it comes before.
        self.wait(puppet, slot);
        self.written.insert(slot);
        let stream = random.below(STREAMS + 1);
        let value = random.below(1 << 20);
        let piece = self.pieces.get_mut(&slot).unwrap();
        let fill = |stream: u64| format!("fill {stream} {slot} {} {value}", piece.words);
        match piece.graph {
            Some(value) if random.below(2) == 0 => {
                piece.value = value;
                puppet.run(&format!("play {slot} {stream}"));
                "play"
            }
            None if random.below(3) == 0 => {
                puppet.run("capture 1");
                puppet.run(&fill(1));
                puppet.run(&format!("graph {slot} 1"));
                piece.graph = Some(value);
                "graph"
            }
            _ => {
                puppet.run(&fill(stream));
                piece.value = value;
                "fill"
            }
        }
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
            let kind = match random.below(12) {
                0..=3 => Kind::Own,
                4 if held.uses_pool => Kind::Pool,
                _ => Kind::Allocated,
            };
            let bytes = 4 * words;
            let (verb, line) = match kind {
                Kind::Allocated => ("alloc", format!("alloc {slot} {bytes}")),
                Kind::Own => ("own", format!("own {slot} {bytes}")),
                Kind::Pool => ("async", format!("async 0 {slot} {bytes}")),
            };
            puppet.run(&line);
            let value = random.below(1 << 20);
            puppet.run(&format!("fill 0 {slot} {words} {value}"));
            held.written.insert(slot);
            let piece = Piece {
                words,
                value,
                kind,
                graph: None,
            };
            held.pieces.insert(slot, piece);
            verb
        }
        20..=29 if !slots.is_empty() => held.free(puppet, any(random)),
        30..=44 if !slots.is_empty() => {
            let slot = any(random);
            let done = held.fill(puppet, random, slot);
            if held.pieces[&slot].kind == Kind::Own && random.below(2) == 0 {
                held.wait(puppet, slot);
                puppet.run(&format!("remap {slot}"));
                return "remap";
            }
            done
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
            let graphs = held.pieces.iter().find(|(_, piece)| piece.graph.is_some());
            if let Some((&slot, _)) = graphs {
                held.wait(puppet, slot);
                held.written.insert(slot);
                let piece = held.pieces.get_mut(&slot).unwrap();
                piece.value = piece.graph.unwrap();
                puppet.run(&format!("play {slot} {}", random.below(STREAMS + 1)));
            }
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
    for stream in 1..=STREAMS {
        puppet.run(&format!("stream {stream}"));
    }
    let mut held = Held {
        uses_pool: random.below(3) == 0,
        ..Held::default()
    };
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let begin = Instant::now();
    let mut done = 0;
    while length.map_or(done < OPERATIONS, |length| begin.elapsed() < length) {
        done += 1;
        let what = act(&mut random, &mut node, &mut puppet, &mut held);
        *counts.entry(what).or_default() += 1;
    }
    let slots: Vec<u64> = held.pieces.keys().copied().collect();
    for slot in slots {
        held.check(&mut puppet, slot);
    }
    print_line(&format!("{counts:?}; {} granules", held.granules()));
    assert!(counts["evict"] > 10, "{counts:?}");
}
