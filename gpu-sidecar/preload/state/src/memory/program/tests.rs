use super::*;

fn created(program: &mut Program, handle: u64, bytes: u64) {
    let own = program.created(handle, bytes, Some((Properties::plain(0, false), 7)));
    assert_eq!(own, handle);
}

fn bytes_of(freed: (Freed, Option<u64>)) -> u64 {
    assert_eq!(freed.1, None);
    freed.0.bytes
}

#[test]
fn a_mapping_keeps_memory_whose_handle_is_released() {
    let mut program = Program::default();
    created(&mut program, 0, 100);
    program.mapped(1_000, 100, 0);
    assert_eq!(bytes_of(program.released(0)), 0);
    // The handle is unknown now.
    assert_eq!(bytes_of(program.released(0)), 0);
    assert_eq!(program.retained(0, 1_050), 0);
    assert_eq!(program.unmapped(1_000, 100).bytes, 0);
    assert_eq!(bytes_of(program.released(0)), 100);
    assert!(program.physical.is_empty() && program.handles.is_empty());
}

#[test]
fn one_unmap_may_remove_several_mappings() {
    let mut program = Program::default();
    for handle in 1..=3 {
        created(&mut program, handle, 10);
        program.mapped(handle * 10, 10, handle);
        assert_eq!(bytes_of(program.released(handle)), 0);
    }
    let freed = program.unmapped(10, 20);
    assert_eq!((freed.bytes, freed.gone.len()), (20, 2));
    assert_eq!(program.unmapped(10, 20), Freed::default());
    assert_eq!(program.unmapped(30, 10).bytes, 10);
}

#[test]
fn aliases_count_once_and_imports_never() {
    let mut program = Program::default();
    created(&mut program, 5, 64);
    program.mapped(1_000, 64, 5);
    program.mapped(2_000, 64, 5);
    assert_eq!(program.retained(6, 2_001), 6);
    assert_eq!(bytes_of(program.released(5)), 0);
    assert_eq!(program.unmapped(1_000, 64).bytes, 0);
    assert_eq!(program.unmapped(2_000, 64).bytes, 0);
    assert_eq!(bytes_of(program.released(6)), 64);
    assert!(!program.has_imported());
    assert_eq!(program.created(7, 0, None), 7);
    assert!(program.has_imported());
    program.mapped(1_000, 64, 7);
    assert!(program.blocks(false).is_empty(), "imported memory stays");
    assert_eq!(bytes_of(program.released(7)), 0);
    assert_eq!(program.unmapped(1_000, 64).bytes, 0);
    assert!(program.physical.is_empty());
    // Unknown handles and addresses count for nothing.
    program.mapped(1, 1, 99);
    assert_eq!(program.retained(1, 99), 1);
    assert_eq!(
        bytes_of(program.released(1)) + program.unmapped(0, 10_000).bytes,
        0
    );
}

#[test]
fn memory_that_has_moved_keeps_the_programs_handle() {
    let mut program = Program::default();
    created(&mut program, 5, 64);
    program.mapped(1_000, 64, 5);
    program.mapped(2_000, 64, 5);
    program.set_access(0, 1_500, &[Access::full(0)]);
    let blocks = program.blocks(false);
    let [block] = blocks[..] else { panic!() };
    assert_eq!((block.at, block.bytes, block.device), (1_000, 64, 0));
    assert_eq!(block.context, 7);
    let plan = program.mappings_of(block.id);
    let expected = [(1_000, 64, vec![Access::full(0)]), (2_000, 64, Vec::new())];
    assert_eq!(plan, expected);
    assert_eq!(program.left(block.id), [5]);
    assert!(program.left(block.id).is_empty());
    assert!(program.is_name(5));
    assert_eq!(program.real(5), None);
    assert_eq!(program.blocks(true), blocks);
    assert_eq!(program.in_range(0, 1_500), [(1_000, 64, true)]);
    // The driver uses the number for other memory meanwhile.
    let other = program.created(5, 10, Some((Properties::plain(0, false), 7)));
    assert_ne!(other, 5);
    assert_eq!(program.real(other), Some(5));
    assert!(program.is_name(other));
    let (properties, bytes) = program.to_create(block.id).unwrap();
    assert_eq!((properties.location.id, bytes), (0, 64));
    assert_eq!(program.returned(block.id, 9), None);
    assert_eq!(program.real(5), Some(9));
    assert_eq!(program.to_create(block.id).map(|(_, bytes)| bytes), None);
    // A second handle of the program's is the same name, and the driver's further one is surplus.
    assert!(program.is_named_at(2_010) && program.has_real_at(2_010));
    assert_eq!(program.retained(9, 2_010), 5);
    assert_eq!(program.released(5), (Freed::default(), None));
    assert_eq!(program.released(5), (Freed::default(), Some(9)));
    assert_eq!(program.released(other).1, Some(5));
    let freed = program.unmapped(0, 5_000);
    assert_eq!((freed.bytes, freed.gone), (64, vec![block.id]));
}

#[test]
fn memory_without_a_handle_is_kept_by_its_mappings() {
    let mut program = Program::default();
    created(&mut program, 5, 64);
    program.mapped(1_000, 64, 5);
    assert!(program.blocks(false).is_empty(), "no device can read it");
    program.set_access(1_000, 64, &[Access::full(0)]);
    program.released(5);
    let [block] = program.blocks(false)[..] else {
        panic!()
    };
    assert!(program.left(block.id).is_empty());
    assert_eq!(program.returned(block.id, 9), Some(9));
    // A handle of it is a name from then on, behind which the driver's is.
    assert!(program.is_named_at(1_000) && !program.has_real_at(1_000));
    let name = program.retained(9, 1_000);
    assert_eq!(program.real(name), Some(9));
    assert_eq!(program.left(block.id), [9]);
    assert_eq!(program.real(name), None);
    // It is freed while it is away.
    assert_eq!(program.released(name), (Freed::default(), None));
    assert_eq!(program.unmapped(1_000, 64).gone, [block.id]);
    assert_eq!(program.returned(block.id, 11), Some(11));
}

#[test]
fn a_handle_retained_several_times_is_released_as_often() {
    let mut program = Program::default();
    created(&mut program, 5, 64);
    program.mapped(1_000, 64, 5);
    program.set_access(1_000, 64, &[Access::full(0)]);
    assert_eq!(program.retained(5, 1_000), 5);
    assert_eq!(program.retained(6, 1_000), 6);
    let [block] = program.blocks(false)[..] else {
        panic!()
    };
    assert_eq!(program.left(block.id), [5, 5, 6]);
    assert_eq!(program.returned(block.id, 9), None);
    assert_eq!((program.real(5), program.real(6)), (Some(9), Some(9)));
    for (handle, last) in [(6, None), (5, None), (5, Some(9))] {
        assert_eq!(program.released(handle).1, last);
    }
}

#[test]
fn exported_memory_is_noted_as_long_as_it_exists() {
    let mut program = Program::default();
    created(&mut program, 5, 64);
    assert!(!program.has_exported());
    program.exported(5);
    program.exported(99);
    assert!(program.has_exported());
    program.released(5);
    assert!(!program.has_exported());
}
