//! A warm packer allocates nothing per decision, as counted by this test's own allocator.
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use policy::footprint::Footprint;
use policy::rectangles::{FunctionId, InstanceId, Pod, Rectangles, Settings, SlotId};
use policy::tokens::Share;
use testing::Random;

/// Adds and removes pods of the profiling grid. Returns the number of pods placed.
fn work(packer: &mut Rectangles, random: &mut Random) -> u32 {
    let mut placed = 0;
    for _ in 0..6_000 {
        let instance = InstanceId(random.below_u32(120));
        if packer.remove(instance).is_some() {
            continue;
        }
        let function = random.below_u32(10);
        let pod = Pod {
            function: FunctionId(function),
            quota: Share::from_percent([20, 40, 60, 80, 100][random.below_u32(5) as usize]),
            sm: [600, 1_200, 2_400, 5_000][random.below_u32(4) as usize],
            footprint: Footprint {
                storage: u64::from(function % 3),
                pod: 1,
            },
        };
        placed += u32::from(packer.place(instance, &pod).is_ok());
    }
    placed
}

#[test]
fn a_warm_packer_allocates_nothing() {
    for settings in [Settings::default(), Settings::paper()] {
        let mut packer = Rectangles::new(settings).unwrap();
        for slot in 0..20 {
            packer.add_slot(SlotId(slot), 30).unwrap();
        }
        let mut warm = 0;
        // The same events again, so that no vector has to grow.
        for _ in 0..2 {
            warm = work(&mut packer, &mut Random(11));
            for instance in 0..120 {
                packer.remove(InstanceId(instance));
            }
        }
        let mut random = Random(11);
        let mut placed = 0;
        let counted = allocation_counter::measure(|| placed = work(&mut packer, &mut random));
        println!("{warm} and {placed} placed, {counted:?}");
        assert!(placed > 1_500);
        assert_eq!(counted.count_total, 0, "{counted:?}");
    }
}
