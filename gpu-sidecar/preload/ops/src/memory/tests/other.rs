//! Memory of the driver, and memory that the program creates itself.

use preload_state::memory::{Location, Properties};

use super::*;
use crate::cuda::INVALID_VALUE;
use crate::memory::{native, program};
use crate::outcome::Reason;

fn plain() -> Properties {
    Properties::plain(0, false)
}

#[test]
fn managed_memory_counts_until_it_is_freed() {
    let fake = limited(4);
    assert_eq!(
        native::alloc(fake, Kind::Managed, MIB, &|| Ok(0x55)),
        Outcome::Done(0x55)
    );
    assert_eq!(held(fake, Kind::Managed), MIB);
    // The driver refuses the free.
    assert_eq!(free::free(fake, &|| 700, 0x55), Outcome::Done(700));
    assert_eq!(held(fake, Kind::Managed), MIB);
    assert_eq!(free::free(fake, &|| SUCCESS, 0x55), Outcome::Done(SUCCESS));
    assert_eq!(
        native::free(fake, &|| SUCCESS, 0x55),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(held(fake, Kind::Managed), 0);
}

#[test]
fn memory_of_the_driver_is_limited_too() {
    let fake = limited(4);
    let outcome = native::alloc(fake, Kind::Managed, 5 * GRANULE, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
    assert_eq!(
        native::alloc(fake, Kind::Managed, GRANULE, &|| Err(2)),
        Outcome::Fail(2)
    );
    assert_eq!(held(fake, Kind::Managed), 0);
    assert_eq!(
        native::alloc(fake, Kind::Managed, 0, &unreached),
        Outcome::Pass(Reason::Invalid)
    );
}

#[test]
fn arrays_count_until_they_are_destroyed() {
    let fake = limited(4);
    assert_eq!(
        native::array(fake, Some(MIB), &|| Ok(0x66)),
        Outcome::Done(0x66)
    );
    assert_eq!(
        native::array(fake, None, &unreached),
        Outcome::Pass(Reason::Foreign)
    );
    assert_eq!(native::destroy(fake, &|| 1, 0x66), Outcome::Done(1));
    assert_eq!(held(fake, Kind::Array), MIB);
    assert_eq!(
        native::destroy(fake, &|| SUCCESS, 0x66),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(
        native::destroy(fake, &|| SUCCESS, 0x66),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(held(fake, Kind::Array), 0);
}

#[test]
fn memory_of_a_destroyed_context_counts_no_more() {
    let fake = unlimited();
    let _array = native::array(fake, Some(MIB), &|| Ok(0x66));
    let _memory = native::alloc(fake, Kind::Managed, MIB, &|| Ok(0x55));
    contexts::context_destroyed(fake, CONTEXT);
    assert_eq!(published(fake), 0);
}

#[test]
fn created_memory_counts_until_no_handle_and_no_mapping_remains() {
    let fake = limited(8);
    let created = program::create(fake, 2 * GRANULE, &plain(), &|| Ok(9));
    assert_eq!(created, Outcome::Done(9));
    assert_eq!(
        program::map(fake, &|| SUCCESS, 0x100, 2 * GRANULE, 9),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(
        program::release(fake, &|| SUCCESS, 9),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(held(fake, Kind::Program), 2 * GRANULE);
    let retained = program::retain(fake, 0x101, &|| Ok(Some(10)));
    assert_eq!(retained, Outcome::Done(Some(10)));
    assert_eq!(
        program::unmap(fake, &|| SUCCESS, 0x100, 2 * GRANULE),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(held(fake, Kind::Program), 2 * GRANULE);
    assert_eq!(
        program::release(fake, &|| SUCCESS, 10),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(held(fake, Kind::Program), 0);
}

#[test]
fn calls_that_the_driver_refuses_change_nothing() {
    let fake = limited(8);
    let created = program::create(fake, GRANULE, &plain(), &|| Err(1));
    assert_eq!((created, held(fake, Kind::Program)), (Outcome::Fail(1), 0));
    let _created = program::create(fake, GRANULE, &plain(), &|| Ok(9));
    assert_eq!(
        program::map(fake, &|| 1, 0x100, GRANULE, 9),
        Outcome::Done(1)
    );
    assert_eq!(
        program::unmap(fake, &|| 1, 0x100, GRANULE),
        Outcome::Done(1)
    );
    assert_eq!(program::release(fake, &|| 1, 9), Outcome::Done(1));
    assert_eq!(held(fake, Kind::Program), GRANULE);
    assert_eq!(program::import(fake, &|| Err(5)), Outcome::Fail(5));
}

#[test]
fn sizes_that_the_driver_refuses_are_its_to_report() {
    let fake = limited(8);
    for bytes in [0, 1, GRANULE + 1] {
        let outcome = program::create(fake, bytes, &plain(), &unreached);
        assert_eq!(outcome, Outcome::Pass(Reason::Invalid));
    }
    let elsewhere = Properties {
        location: Location { kind: 2, id: 0 },
        ..plain()
    };
    let outcome = program::create(fake, GRANULE, &elsewhere, &unreached);
    assert_eq!(outcome, Outcome::Pass(Reason::Foreign));
    let too_much = program::create(fake, 9 * GRANULE, &plain(), &unreached);
    assert_eq!(too_much, Outcome::Fail(OUT_OF_MEMORY));
}

#[test]
fn imported_memory_counts_elsewhere() {
    let fake = limited(8);
    assert_eq!(
        program::import(fake, &|| Ok(Some(3))),
        Outcome::Done(Some(3))
    );
    assert_eq!(program::import(fake, &|| Ok(None)), Outcome::Done(None));
    assert_eq!(
        program::release(fake, &|| SUCCESS, 3),
        Outcome::Done(SUCCESS)
    );
    assert_eq!(published(fake), 0);
}

#[test]
fn the_program_may_not_operate_on_this_librarys_mappings() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    let refused = Outcome::Fail(INVALID_VALUE);
    assert_eq!(program::map(fake, &|| SUCCESS, at, GRANULE, 9), refused);
    assert_eq!(program::unmap(fake, &|| SUCCESS, at, GRANULE), refused);
    let access = program::set_access(fake, &|| SUCCESS, at, GRANULE, &[]);
    assert_eq!(access, refused);
    assert_eq!(program::free_addresses(fake, at), refused);
    assert_eq!(
        program::free_addresses(fake, 0x100),
        Outcome::Pass(Reason::Foreign)
    );
    let retained = program::retain(fake, at, &unreached);
    assert_eq!(retained, Outcome::Fail(INVALID_VALUE));
}
