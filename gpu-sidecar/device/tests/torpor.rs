//! Torpor's Tables 3 and 4 as fitted in workloads §9: the machine reproduces the closed forms to 1 ns.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Completion, Machine, ProcessSettings, StreamId};
use device::node::{Gpu, Node, NvLink, Switch};
use device::op::{CopyKind, Op};
use device::part::Part;
use device::{Span, Time};

/// Bandwidth B of PCIe and of a fast NVLink, in bytes per second.
const PCIE: u64 = 9_460_000_000;
/// Time before the first byte of a copy (M2.6).
const SETUP: Span = Span(22_000);
const NVLINK: u64 = 44_000_000_000;
/// Constant a: the additional cost of a swapped request.
const A: Span = Span(1_920_000);
/// 1 + s in hundredths: slowdown of two transfers behind one switch.
const CONTENTION_HUNDREDTHS: u64 = 160;

/// Torpor's eight models: name, C in ms (the remoting column of Table 4), parameters in thousands, and latencies over PCIe and
/// NVLink in ms.
const MODELS: [(&str, u64, u64, u64, u64); 8] = [
    ("DenseNet-169", 25, 14_149, 27, 26),
    ("DenseNet-201", 28, 20_014, 30, 30),
    ("Inception-v3", 14, 27_161, 17, 16),
    ("EfficientNet", 12, 5_289, 13, 13),
    ("ResNet-50", 9, 25_557, 13, 11),
    ("ResNet-101", 14, 44_549, 22, 16),
    ("ResNet-152", 17, 60_193, 25, 20),
    ("Bert-qa", 43, 335_000, 144, 45),
];

/// Returns the size of the weights in fp32, in bytes.
const fn bytes(params_thousands: u64) -> u64 {
    params_thousands * 1_000 * 4
}

/// Returns a node with four V100 behind two switches; the first and the third also have a fast NVLink.
fn node() -> Node {
    let v100 = Part::named("V100").unwrap();
    let gpu = || Gpu {
        part: v100.clone(),
        slices: Vec::new(),
    };
    let uplink_bytes_per_second = 2 * PCIE * 100 / CONTENTION_HUNDREDTHS;
    Node {
        gpus: (0..4).map(|_| gpu()).collect(),
        switches: [[0, 1], [2, 3]]
            .map(|gpus| Switch {
                gpus: gpus.to_vec(),
                uplink_bytes_per_second,
            })
            .to_vec(),
        nvlinks: vec![NvLink {
            gpus: [0, 2],
            bytes_per_second: NVLINK,
        }],
        ..Node::default()
    }
}

/// Submits a request with its model swapped in while it computes: transfer and kernels concurrently, then the additional cost.
/// Returns the stream in which it ends.
fn request(
    machine: &mut Machine,
    unit: u32,
    from: Option<u32>,
    compute: Span,
    bytes: u64,
) -> StreamId {
    let now = machine.now();
    let process = machine.admit(unit, &ProcessSettings::default()).unwrap();
    let (computes, copies) = (machine.stream(process), machine.stream(process));
    if let Some(from) = from {
        // Over NVLink the weights come from another GPU, whose copy engine sends them.
        let source = machine.admit(from, &ProcessSettings::default()).unwrap();
        let sends = machine.stream(source);
        let sent = machine.event();
        submit(
            machine,
            sends,
            now,
            Op::Copy {
                kind: CopyKind::Peer(unit),
                bytes,
            },
        );
        submit(machine, sends, now, Op::Record(sent));
        submit(machine, copies, now, Op::Wait(sent));
    } else {
        let kind = CopyKind::HostToDevice;
        submit(machine, copies, now, Op::Copy { kind, bytes });
    }
    let copied = machine.event();
    submit(machine, copies, now, Op::Record(copied));
    let kernel = Kernel {
        duration: compute,
        sms: 80,
        law: Law::Linear,
        interference_millionths: 0,
    };
    submit(machine, computes, now, Op::Kernel(kernel));
    submit(machine, computes, now, Op::Wait(copied));
    submit(machine, computes, now, Op::Delay(A));
    computes
}

fn submit(machine: &mut Machine, stream: StreamId, not_before: Time, op: Op) {
    machine.submit(stream, not_before, op).unwrap();
}

fn run(machine: &mut Machine) -> Vec<Completion> {
    let mut done = Vec::new();
    machine.advance(Time(3_600_000_000_000), &mut done);
    done
}

fn ended(done: &[Completion], stream: StreamId) -> u64 {
    let last = done.iter().rfind(|done| done.stream == stream);
    last.unwrap().ended.0
}

/// Returns W / B in nanoseconds, rounded up.
fn transfer(bytes: u64, bytes_per_second: u64) -> u64 {
    u64::try_from((u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_second)))
        .unwrap()
}

#[test]
fn table_4_alone() {
    for (name, compute_ms, params, pcie_ms, nvlink_ms) in MODELS {
        let (compute, bytes) = (Span::from_millis(compute_ms), bytes(params));
        for (from, rate, printed_ms) in [(None, PCIE, pcie_ms), (Some(2), NVLINK, nvlink_ms)] {
            let mut machine = Machine::new(&node()).unwrap();
            let stream = request(&mut machine, 0, from, compute, bytes);
            let latency = ended(&run(&mut machine), stream);
            let closed = compute.0.max(SETUP.0 + transfer(bytes, rate)) + A.0;
            assert!(latency.abs_diff(closed) <= 1, "{name}: {latency} {closed}");
            // The fit, which has no setup, is within 9.5 % of the printed value, and with it within 9.6 %.
            let printed = printed_ms * 1_000_000;
            assert!(
                latency.abs_diff(printed) * 1_000 <= printed * 96,
                "{name}: {latency}"
            );
        }
    }
}

#[test]
fn table_3_with_a_neighbour_on_the_same_switch() {
    // L = max(C, W/B · (1 + s·d)) + a, where d is the fraction of the bytes sent while the neighbour also sends.
    for (name, compute_ms, params, ..) in MODELS {
        for (other, _, other_params, ..) in MODELS {
            let (mine, others) = (bytes(params), bytes(other_params));
            let mut machine = Machine::new(&node()).unwrap();
            let compute = Span::from_millis(compute_ms);
            let stream = request(&mut machine, 0, None, compute, mine);
            request(&mut machine, 1, None, Span(1), others);
            let latency = ended(&run(&mut machine), stream);
            let together = mine.min(others);
            let weighed = u128::from(mine) * 100
                + u128::from(together) * u128::from(CONTENTION_HUNDREDTHS - 100);
            let sent = (weighed * 10_000_000).div_ceil(u128::from(PCIE));
            let closed = compute.0.max(SETUP.0 + u64::try_from(sent).unwrap()) + A.0;
            // Two ends are rounded up independently.
            assert!(
                latency.abs_diff(closed) <= 1,
                "{name} beside {other}: {latency} {closed}"
            );
        }
    }
}

/// Submits consecutive requests of a model, each of which swaps it in again, with an additional cost. Returns the last command.
fn swaps(machine: &mut Machine, unit: u32, name: &str, extra: Span, requests: u32) -> u64 {
    let model = MODELS.iter().find(|model| model.0 == name).unwrap();
    let (compute, bytes) = (Span::from_millis(model.1), bytes(model.2));
    let process = machine.admit(unit, &ProcessSettings::default()).unwrap();
    let (computes, copies) = (machine.stream(process), machine.stream(process));
    let (copied, over) = (machine.event(), machine.event());
    let kernel = Kernel {
        duration: compute,
        sms: 80,
        law: Law::Linear,
        interference_millionths: 0,
    };
    let kind = CopyKind::HostToDevice;
    let mut last = 0;
    for _ in 0..requests {
        let mut submit = |stream, op| machine.submit(stream, Time(0), op).unwrap();
        submit(copies, Op::Wait(over));
        submit(copies, Op::Copy { kind, bytes });
        submit(copies, Op::Record(copied));
        submit(computes, Op::Kernel(kernel));
        submit(computes, Op::Wait(copied));
        submit(computes, Op::Delay(extra));
        last = submit(computes, Op::Record(over));
    }
    last
}

/// Latencies of Torpor Table 3 in ms: measured model, neighbour on the same switch, printed value. A model beside itself is the
/// model alone.
const TABLE_3: [(&str, &str, u64); 9] = [
    ("DenseNet-169", "DenseNet-169", 27),
    ("DenseNet-169", "ResNet-152", 27),
    ("DenseNet-169", "Bert-qa", 27),
    ("ResNet-152", "DenseNet-169", 31),
    ("ResNet-152", "ResNet-152", 29),
    ("ResNet-152", "Bert-qa", 43),
    ("Bert-qa", "DenseNet-169", 166),
    ("Bert-qa", "ResNet-152", 240),
    ("Bert-qa", "Bert-qa", 149),
];

#[test]
fn table_3_with_a_continuously_swapping_neighbour() {
    const REQUESTS: u32 = 200;
    for (name, other, printed_ms) in TABLE_3 {
        let mut machine = Machine::new(&node()).unwrap();
        let last = swaps(&mut machine, 0, name, A, REQUESTS);
        if name != other {
            // The neighbour swaps again as soon as its kernels and its transfer are complete, and runs longer than the others.
            // (If it paused for a as well, Bert-qa beside ResNet-152 would be 7.3 % below the printed value.)
            swaps(&mut machine, 1, other, Span::ZERO, 20 * REQUESTS);
        }
        let done = run(&mut machine);
        let last = done.iter().find(|done| done.command == last).unwrap();
        let mean = last.ended.0 / u64::from(REQUESTS);
        let printed = printed_ms * 1_000_000;
        assert!(
            mean.abs_diff(printed) * 1_000 <= printed * 62,
            "{name} beside {other}: {mean}"
        );
    }
}

#[test]
fn a_neighbour_on_another_switch_or_in_the_other_direction_has_no_effect() {
    let bytes = bytes(335_000);
    let mut machine = Machine::new(&node()).unwrap();
    let stream = request(&mut machine, 0, None, Span(1), bytes);
    request(&mut machine, 2, None, Span(1), bytes);
    let process = machine.admit(1, &ProcessSettings::default()).unwrap();
    let back = machine.stream(process);
    submit(
        &mut machine,
        back,
        Time(0),
        Op::Copy {
            kind: CopyKind::DeviceToHost,
            bytes,
        },
    );
    assert_eq!(
        ended(&run(&mut machine), stream),
        SETUP.0 + transfer(bytes, PCIE) + A.0
    );
}
