//! What always holds, whatever is asked of a machine.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::ledger::{Entry, Held};
use device::machine::{Done, Machine, ProcessSettings, StreamId};
use device::node::{Gpu, Node, NvLink, Switch};
use device::op::{Graph, Op, Way};
use device::part::Part;
use device::{Span, Time};
use proptest::prelude::*;

const UPLINK: u64 = 30_000_000_000;
const NVLINK: u64 = 100_000_000_000;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Kernel {
        stream: usize,
        micros: u64,
        sms: u32,
    },
    Copy {
        stream: usize,
        kind: u8,
        bytes: u64,
    },
    Graph {
        stream: usize,
        micros: u64,
    },
    Delay {
        stream: usize,
        micros: u64,
    },
    Join {
        from: usize,
        to: usize,
    },
    Pass {
        micros: u64,
    },
    Dismiss {
        process: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..8_usize;
    prop_oneof![
        6 => (stream.clone(), 0..3_000_u64, 0..200_u32)
            .prop_map(|(stream, micros, sms)| Step::Kernel { stream, micros, sms }),
        4 => (stream.clone(), 0..4_u8, 0..40_000_000_u64)
            .prop_map(|(stream, kind, bytes)| Step::Copy { stream, kind, bytes }),
        1 => (stream.clone(), 0..500_u64).prop_map(|(stream, micros)| Step::Graph { stream, micros }),
        1 => (stream.clone(), 0..500_u64).prop_map(|(stream, micros)| Step::Delay { stream, micros }),
        2 => (stream.clone(), stream).prop_map(|(from, to)| Step::Join { from, to }),
        4 => (0..2_000_u64).prop_map(|micros| Step::Pass { micros }),
        1 => (0..4_usize).prop_map(|process| Step::Dismiss { process }),
    ]
}

/// A whole A100 with or without MPS, one cut in three, both behind a switch, with an NVLink.
fn node(mps: bool) -> Node {
    let part = Part::named("A100").unwrap();
    let gpu = |slices: &[&str]| Gpu {
        part: part.clone(),
        slices: slices.iter().map(|&name| name.to_owned()).collect(),
        mps,
    };
    Node {
        gpus: vec![gpu(&[]), gpu(&["4g.40gb", "2g.20gb", "1g.10gb"])],
        switches: vec![Switch {
            gpus: vec![0, 1],
            uplink_bytes_per_second: UPLINK,
        }],
        nvlinks: vec![NvLink {
            gpus: [0, 1],
            bytes_per_second: NVLINK,
        }],
    }
}

/// SMs of each GPU or slice of [`node`]; bytes per second of each link.
const SMS: [u32; 4] = [108, 56, 28, 14];
const LINKS: [u64; 8] = [
    25_000_000_000,
    25_000_000_000,
    25_000_000_000,
    25_000_000_000,
    UPLINK,
    UPLINK,
    NVLINK,
    NVLINK,
];

struct Ran {
    done: Vec<Done>,
    ledger: Vec<Entry>,
    /// Duration × SMs that were asked for, and bytes, of all that ended, by stream and command.
    kernels: BTreeMap<(StreamId, u64), u128>,
    dismissed: bool,
}

/// Two processes on the whole GPU and one on each of two slices, two streams each. `stride`: time passes in pieces.
fn run(steps: &[Step], mps: bool, stride: Option<u64>) -> Ran {
    let mut machine = Machine::new(&node(mps)).unwrap();
    let settings = |percent| ProcessSettings {
        active_thread_percentage_hundredths: percent,
        memory_limit: None,
    };
    let processes = [(0, None), (0, Some(3_000)), (1, None), (3, Some(5_000))]
        .map(|(unit, percent)| (unit, machine.admit(unit, &settings(percent)).unwrap()));
    let streams: Vec<_> = (0..8).map(|n| machine.stream(processes[n / 2].1)).collect();
    let (mut done, mut kernels, mut dismissed) = (Vec::new(), BTreeMap::new(), false);
    let kernel = |micros: u64, sms| Kernel {
        duration: Span(micros * 1_000),
        sms,
        law: Law::Linear,
        interference_millionths: 0,
    };
    for step in steps {
        let now = machine.now();
        match *step {
            Step::Kernel {
                stream,
                micros,
                sms,
            } => {
                let op = Op::Kernel(kernel(micros, sms));
                let command = machine.submit(streams[stream], now, op);
                let work = u128::from(micros * 1_000) * u128::from(sms.clamp(1, SMS[0]));
                kernels.insert((streams[stream], command), work);
            }
            Step::Copy {
                stream,
                kind,
                bytes,
            } => {
                let way = match kind {
                    0 | 1 => Way::HostToDevice,
                    2 => Way::DeviceToHost,
                    _ => Way::Peer(if stream < 4 { 1 } else { 0 }),
                };
                machine.submit(streams[stream], now, Op::Copy { way, bytes });
            }
            Step::Graph { stream, micros } => {
                let mut graph = Graph::default();
                let first = graph.add(Op::Kernel(kernel(micros, 20)), &[]).unwrap();
                let left = graph.add(Op::Kernel(kernel(micros, 30)), &[first]).unwrap();
                let right = graph.add(Op::Delay(Span(micros)), &[first]).unwrap();
                graph
                    .add(Op::Kernel(kernel(micros, 10)), &[left, right])
                    .unwrap();
                machine.submit(streams[stream], now, Op::Graph(Arc::new(graph)));
            }
            Step::Delay { stream, micros } => {
                machine.submit(streams[stream], now, Op::Delay(Span(micros * 1_000)));
            }
            Step::Join { from, to } => {
                let event = machine.event();
                machine.submit(streams[from], now, Op::Record(event));
                machine.submit(streams[to], now, Op::Wait(event));
            }
            Step::Pass { micros } => {
                let to = now.after(Span(micros * 1_000));
                while let Some(stride) = stride.filter(|_| machine.now() < to) {
                    let next = machine.now().after(Span(stride)).0.min(to.0);
                    machine.advance(Time(next), &mut done);
                }
                machine.advance(to, &mut done);
            }
            Step::Dismiss { process } => {
                machine.dismiss(processes[process].1);
                dismissed = true;
            }
        }
    }
    machine.advance(Time(3_600_000_000_000), &mut done);
    // Whatever is left waits for an event of a process that is gone.
    assert!(machine.next().is_none());
    let ledger = machine.take_ledger();
    Ran {
        done,
        ledger,
        kernels,
        dismissed,
    }
}

/// The most that was ever held at once, by what was held.
fn peaks(ledger: &[Entry]) -> BTreeMap<Held, u64> {
    let mut edges: BTreeMap<(Held, Time), (u64, u64)> = BTreeMap::new();
    for entry in ledger {
        edges.entry((entry.held, entry.from)).or_default().0 += entry.amount;
        edges.entry((entry.held, entry.to)).or_default().1 += entry.amount;
    }
    let mut levels: BTreeMap<Held, (u64, u64)> = BTreeMap::new();
    for ((held, _), (up, down)) in edges {
        let (level, peak) = levels.entry(held).or_default();
        *level = *level + up - down;
        *peak = (*peak).max(*level);
    }
    levels
        .into_iter()
        .map(|(held, (_, peak))| (held, peak))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_sm_and_no_byte_per_second_is_used_twice(steps in prop::collection::vec(step(), 1..60), mps: bool) {
        for (held, peak) in peaks(&run(&steps, mps, None).ledger) {
            match held {
                Held::Sms { unit } => prop_assert!(peak <= u64::from(SMS[unit as usize]) * 1_000, "{held:?}: {peak}"),
                Held::Link { link } => prop_assert!(peak <= LINKS[link as usize], "{held:?}: {peak}"),
                Held::Memory { .. } => {}
            }
        }
    }

    #[test]
    fn without_mps_one_process_at_a_time_has_a_gpu(steps in prop::collection::vec(step(), 1..60)) {
        let ran = run(&steps, false, None);
        let sms = |entry: &&Entry| matches!(entry.held, Held::Sms { .. });
        let held: Vec<_> = ran.ledger.iter().filter(sms).collect();
        for (n, one) in held.iter().enumerate() {
            for other in &held[n + 1..] {
                let overlaps = one.held == other.held && one.from < other.to && other.from < one.to;
                prop_assert!(!overlaps || one.process == other.process, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn work_is_conserved(steps in prop::collection::vec(step(), 1..60), mps: bool) {
        let ran = run(&steps, mps, None);
        // Whose commands were dropped is not looked at: what they had done is not told.
        prop_assume!(!ran.dismissed);
        let asked: u128 = ran.kernels.values().sum::<u128>();
        let of_graphs: u128 = steps
            .iter()
            .map(|step| match step {
                Step::Graph { micros, .. } => u128::from(micros * 1_000) * (20 + 30 + 10),
                _ => 0,
            })
            .sum();
        let sms = ran.ledger.iter().filter(|entry| matches!(entry.held, Held::Sms { .. }));
        let (mut held, mut slack) = (0, 1_000_000_u128);
        for entry in sms {
            held += u128::from(entry.amount) * u128::from(entry.span().0);
            // A thousandth of an SM is lost to rounding at most, and the last nanosecond is begun.
            slack += u128::from(entry.span().0) + u128::from(entry.amount);
        }
        let asked = (asked + of_graphs) * 1_000;
        prop_assert!(held.abs_diff(asked) <= slack, "held {held}, asked {asked}, slack {slack}");
    }

    #[test]
    fn commands_of_a_stream_end_in_order(steps in prop::collection::vec(step(), 1..60), mps: bool) {
        let ran = run(&steps, mps, None);
        let mut last: BTreeMap<StreamId, Done> = BTreeMap::new();
        for done in ran.done {
            prop_assert!(done.started <= done.ended);
            if let Some(before) = last.insert(done.stream, done) {
                prop_assert!(before.command < done.command && before.ended <= done.started);
            }
        }
    }

    #[test]
    fn the_same_commands_give_the_same_ledger_in_whatever_pieces_time_passes(
        steps in prop::collection::vec(step(), 1..40),
        mps: bool,
        stride in 50_000..2_000_000_u64,
    ) {
        let (one, other) = (run(&steps, mps, None), run(&steps, mps, Some(stride)));
        prop_assert_eq!(&one.done, &other.done);
        prop_assert_eq!(&one.ledger, &other.ledger);
    }
}
