use super::*;
use crate::cuda::{INVALID_VALUE, NOT_SUPPORTED};
use crate::memory::query::{Attribute, address_range, attributes, set_attribute};
use crate::outcome::Reason;

const UNKNOWN: Code = 1;

fn of(fake: &'static Fake, at: Address, attribute: i32) -> Option<Attribute> {
    let mut found = None;
    let outcome = attributes(fake, at, &|| SUCCESS, &|| UNKNOWN, |correct| {
        found = correct(attribute);
    });
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    found
}

#[test]
fn a_range_is_that_of_the_allocation_and_not_of_the_mapping() {
    let fake = unlimited();
    let at = allocate(fake, 1_000);
    let range = address_range(fake, at + 999, &|| SUCCESS, &|| UNKNOWN);
    assert_eq!(range, Outcome::Done((at, 1_000)));
    let failed = address_range(fake, at, &|| 700, &|| UNKNOWN);
    assert_eq!(failed, Outcome::Fail(700));
}

#[test]
fn an_address_in_no_allocation_is_unknown() {
    let fake = unlimited();
    let at = allocate(fake, 1_000);
    let call = || panic!("the mapping would be found");
    let padding = address_range(fake, at + 1_000, &call, &|| UNKNOWN);
    assert_eq!(padding, Outcome::Fail(UNKNOWN));
    let outcome = attributes(fake, at + 1_000, &call, &|| UNKNOWN, |_| panic!());
    assert_eq!(outcome, Outcome::Done(UNKNOWN));
    let set = set_attribute(fake, at + 1_000, 6, &call, || Some(true));
    assert_eq!(set, Outcome::Fail(INVALID_VALUE));
}

#[test]
fn an_address_outside_of_reserved_ranges_is_the_drivers() {
    let fake = unlimited();
    let _at = allocate(fake, 1_000);
    let passed = Outcome::Pass(Reason::Foreign);
    assert_eq!(
        address_range(fake, 5, &|| 0, &|| UNKNOWN),
        Outcome::Pass(Reason::Foreign)
    );
    assert_eq!(
        attributes(fake, 5, &|| 0, &|| UNKNOWN, |_| panic!()),
        passed
    );
    assert_eq!(set_attribute(fake, 5, 6, &|| 0, || None), passed);
}

#[test]
fn attributes_are_those_of_the_allocation() {
    let fake = unlimited();
    let first = allocate(fake, GRANULE - 5);
    let second = allocate(fake, 1_000);
    for (at, requested, bytes) in [(first, GRANULE - 5, GRANULE), (second, 1_000, 1_024)] {
        let wide = |value| Some(Attribute::Wide(value));
        assert_eq!(of(fake, at + 1, 1), wide(CONTEXT as u64));
        assert_eq!(of(fake, at + 1, 6), Some(Attribute::Flag(false)));
        assert_eq!(of(fake, at + 1, 10), Some(Attribute::Flag(true)));
        assert_eq!(of(fake, at + 1, 11), wide(at));
        assert_eq!(of(fake, at + 1, 12), wide(requested));
        assert_eq!(of(fake, at + 1, 14), Some(Attribute::Narrow(0)));
        assert_eq!(of(fake, at + 1, 18), wide(bytes));
        assert_eq!(of(fake, at + 1, 19), wide(at));
        assert_eq!(of(fake, at + 1, 20), of(fake, at, 7));
        assert_eq!(of(fake, at + 1, 2), None);
    }
    assert_ne!(of(fake, first, 7), of(fake, second, 7));
}

#[test]
fn a_failed_query_is_not_corrected() {
    let fake = unlimited();
    let at = allocate(fake, 1_000);
    let outcome = attributes(fake, at, &|| 700, &|| UNKNOWN, |_| panic!());
    assert_eq!(outcome, Outcome::Done(700));
}

#[test]
fn one_attribute_can_be_set_where_the_driver_cannot() {
    let fake = unlimited();
    let at = allocate(fake, 1_000);
    let set = |attribute, code, value| set_attribute(fake, at, attribute, &|| code, || value);
    assert_eq!(set(6, NOT_SUPPORTED, Some(true)), Outcome::Done(SUCCESS));
    assert_eq!(of(fake, at, 6), Some(Attribute::Flag(true)));
    assert_eq!(set(6, SUCCESS, Some(false)), Outcome::Done(SUCCESS));
    assert_eq!(of(fake, at, 6), Some(Attribute::Flag(false)));
    assert_eq!(set(6, 700, Some(true)), Outcome::Done(700));
    assert_eq!(set(6, SUCCESS, None), Outcome::Done(SUCCESS));
    assert_eq!(
        set(7, INVALID_VALUE, Some(true)),
        Outcome::Done(INVALID_VALUE)
    );
    assert_eq!(of(fake, at, 6), Some(Attribute::Flag(false)));
}
