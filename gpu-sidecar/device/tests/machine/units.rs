//! GPUs and slices, and their reduction in speed and size.

use device::machine::{Machine, MachineError, SliceInfo, UnitInfo};
use device::node::{NodeError, Scale};
use device::op::{CopyKind, Op};
use device::part::Part;
use device::{Span, Time};

use crate::{ALONE, ended, kernel, machine, node, run, submit};

const MIB: u64 = 1 << 20;

#[test]
fn unit_info_describes_gpus_and_slices() {
    let machine = machine(&["1g.10gb", "3g.40gb"]);
    assert_eq!(machine.units(), 2);
    let slice = machine.unit_info(1).unwrap();
    assert_eq!(
        slice,
        UnitInfo {
            gpu: 0,
            sms: 14,
            memory: 9_728 * MIB,
            slice: Some(SliceInfo {
                profile: "1g.10gb".to_owned(),
                profile_id: 19,
                start: 4,
                size: 1,
                compute_slices: 1,
                memory_slices: 1,
            }),
            mps_clients_max: 6,
        }
    );
    assert_eq!(machine.unit_info(2), None);
    let whole = crate::machine(&[]).unit_info(0).unwrap();
    assert_eq!((whole.sms, whole.slice), (108, None));
    // Links to the device, from it, its staging of pageable memory, and the memory of each slice in proportion.
    let links: Vec<_> = machine.links().collect();
    let eighth = 2_039_000_000_000 / 8;
    let (link, staging) = (25_000_000_000, 8_000_000_000);
    assert_eq!(links, [link, link, staging, staging, 4 * eighth, eighth]);
}

#[test]
fn a_copy_within_reads_and_writes_and_a_memset_writes() {
    let mut machine = Machine::new(&node("H200", &[])).unwrap();
    let process = machine.admit(0, &ALONE).unwrap();
    let streams = [(); 2].map(|()| machine.stream(process));
    // 4.8 GB at 4.8 TB/s: 1 ms for each time the bytes move.
    let bytes = 4_800_000_000;
    let kind = CopyKind::Within;
    let copy = submit(&mut machine, streams[0], Time(0), Op::Copy { kind, bytes });
    let done = run(&mut machine);
    assert_eq!(ended(&done, streams[0], copy), 2_000);
    let at = machine.now();
    let from = at.0 / 1_000;
    let copy = submit(&mut machine, streams[0], at, Op::Copy { kind, bytes });
    let set = submit(&mut machine, streams[1], at, Op::Set { bytes });
    // Both run at half speed, then the copy alone; neither holds a copy engine.
    machine.advance(at.after(Span::from_secs(1)), &mut Vec::new());
    let ledger = machine.take_ledger(true);
    let ends = [copy, set].map(|command| {
        let of =
            |entry: &&device::ledger::Entry| entry.work.is_some_and(|work| work.command == command);
        ledger
            .iter()
            .filter(of)
            .map(|entry| entry.to.0)
            .max()
            .unwrap()
            / 1_000
            - from
    });
    assert_eq!(ends, [3_000, 2_000]);
}

#[test]
fn a_scaled_node_differs_only_in_speed_and_size() {
    let end = |scale: Scale| {
        let mut node = node("A100", &["3g.40gb"]);
        node.scale = scale;
        let mut machine = Machine::new(&node).unwrap();
        let streams = [(); 2].map(|()| {
            let process = machine.admit(0, &ALONE).unwrap();
            machine.stream(process)
        });
        // Turns, delays and copies; sizes of transfers are reduced by the caller.
        let bytes = 512_000_000 / u64::from(scale.bytes);
        for stream in streams {
            for kind in [CopyKind::HostToDevice, CopyKind::Within] {
                submit(&mut machine, stream, Time(0), kernel(3_000));
                submit(&mut machine, stream, Time(0), Op::Copy { kind, bytes });
            }
            submit(&mut machine, stream, Time(0), Op::Set { bytes });
            submit(&mut machine, stream, Time(0), Op::Delay(Span(12_345_678)));
        }
        let info = machine.unit_info(0).unwrap();
        let free = machine.memory(0).unwrap().free();
        let last = run(&mut machine).last().unwrap().ended.0;
        (last, info.memory, free)
    };
    let (life, memory, free) = end(Scale::default());
    let (slow, small, left) = end(Scale {
        time: 8,
        bytes: 512,
    });
    // Rounding down changes a rate by less than one byte per second, of some millions.
    assert!((slow / 8).abs_diff(life) < life / 100_000, "{slow} {life}");
    assert_eq!((small, left), (memory / 512, free / 512));
}

#[test]
fn values_out_of_range_are_refused() {
    let mut wrong = node("A100", &[]);
    wrong.scale.bytes = 513;
    assert!(matches!(
        Machine::new(&wrong),
        Err(MachineError::Node(NodeError::Scale { value: 513, .. }))
    ));
    let mut wrong = node("A100", &[]);
    wrong.gpus[0].part.sms = 0;
    assert_eq!(
        Machine::new(&wrong).unwrap_err().to_string(),
        "GPU 0: A100-80GB: sms: 0: allowed: 1 to 10000"
    );
    let mut wrong = node("V100", &[]);
    wrong.gpus[0].slices = vec!["1g.10gb".to_owned()];
    assert_eq!(
        Machine::new(&wrong).unwrap_err().to_string(),
        "GPU 0: V100 does not support MIG"
    );
    assert_eq!(Part::named("A100").unwrap().check().ok(), Some(()));
}
