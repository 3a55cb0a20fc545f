//! Cost of placing a pod, with 10, 100 and 1,000 GPUs of 8 pods each. It should hardly depend on the number of GPUs.

use divan::{Bencher, black_box};
use policy::footprint::Footprint;
use policy::rectangles::{FunctionId, InstanceId, Pod, Rectangles, Settings, SlotId};
use policy::tokens::Share;

fn main() {
    divan::main();
}

const PODS_PER_SLOT: u32 = 8;
const GB: u64 = 1 << 30;

/// One pod is replaced by another of a different function and shape.
#[divan::bench(args = [10, 100, 1_000])]
fn replace_a_pod(bencher: Bencher<'_, '_>, slots: u32) {
    let (mut packer, pods) = full(slots, Settings::default(), grid);
    let mut n = 0_u32;
    bencher.bench_local(|| {
        n = n.wrapping_add(0x9E37_79B9);
        let instance = InstanceId(n % pods);
        packer.remove(instance);
        black_box(packer.place(instance, &grid(n >> 8)))
    });
}

/// Replaces a pod by one with a shape that hardly ever recurs: the worst case of an index by shape.
#[divan::bench(args = [10, 100, 1_000])]
fn replace_a_pod_of_any_shape(bencher: Bencher<'_, '_>, slots: u32) {
    let (mut packer, pods) = full(slots, Settings::default(), any);
    let mut n = 0_u32;
    bencher.bench_local(|| {
        n = n.wrapping_add(0x9E37_79B9);
        let instance = InstanceId(n % pods);
        packer.remove(instance);
        black_box(packer.place(instance, &any(n >> 8)))
    });
}

/// A search for a place on slots that are nearly full.
#[divan::bench(args = [10, 100, 1_000])]
fn find(bencher: Bencher<'_, '_>, slots: u32) {
    let (packer, _) = full(slots, Settings::default(), grid);
    let mut n = 0_u32;
    bencher.bench_local(|| {
        n = n.wrapping_add(0x9E37_79B9);
        black_box(packer.find(&grid(n >> 8)))
    });
}

#[divan::bench(args = [10, 100, 1_000])]
fn find_any_shape(bencher: Bencher<'_, '_>, slots: u32) {
    let (packer, _) = full(slots, Settings::default(), any);
    let mut n = 0_u32;
    bencher.bench_local(|| {
        n = n.wrapping_add(0x9E37_79B9);
        black_box(packer.find(&any(n >> 8)))
    });
}

/// No slot has memory, though rectangles are free.
#[divan::bench(args = [10, 100, 1_000])]
fn find_without_memory(bencher: Bencher<'_, '_>, slots: u32) {
    let (packer, _) = full(slots, Settings::default(), any);
    let pod = Pod {
        footprint: Footprint::shared(20 * GB, 20 * GB),
        ..any(77)
    };
    bencher.bench_local(|| black_box(packer.find(black_box(&pod))));
}

/// Returns a pod of the profiling grid, with an average area of an eighth of a slot.
fn grid(n: u32) -> Pod {
    let n = n.wrapping_mul(0x9E37_79B9) >> 8;
    let shape = [
        (20, 12),
        (40, 12),
        (20, 24),
        (40, 24),
        (60, 12),
        (80, 6),
        (40, 50),
    ];
    let (quota, sm) = shape[(n % 7) as usize];
    Pod {
        function: FunctionId(n / 7 % 50),
        quota: Share::from_percent(quota),
        sm: sm * 100,
        footprint: Footprint::shared(GB, 2 * GB),
    }
}

fn any(n: u32) -> Pod {
    let n = n.wrapping_mul(0x9E37_79B9) >> 4;
    Pod {
        quota: Share::from_parts_per_million(100_000 + n % 400_000).expect("below one"),
        sm: 600 + n / 1_000 % 3_000,
        ..grid(n)
    }
}

/// Fills slots with pods up to eight per slot. Returns the number of pods.
fn full(slots: u32, settings: Settings, pod: fn(u32) -> Pod) -> (Rectangles, u32) {
    let mut packer = Rectangles::new(settings).expect("good settings");
    for slot in 0..slots {
        packer.add_slot(SlotId(slot), 80 * GB).expect("a new slot");
    }
    let wanted = slots * PODS_PER_SLOT;
    let mut placed = 0;
    for n in 0..wanted * 20 {
        if placed < wanted && packer.place(InstanceId(placed), &pod(n)).is_ok() {
            placed += 1;
        }
    }
    assert!(placed == wanted, "{placed} of {wanted}");
    (packer, placed)
}
