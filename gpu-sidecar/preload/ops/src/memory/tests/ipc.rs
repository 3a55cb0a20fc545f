use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use preload_state::memory::{Ticket, TicketContents};

use super::*;
use crate::cuda::INVALID_VALUE;
use crate::memory::ipc::{close, get, open};
use crate::outcome::Reason;

fn ticket(fake: &'static Fake, at: Address) -> TicketContents {
    match get(fake, at) {
        Outcome::Done(ticket) => ticket.read().expect("it is this library's"),
        other => panic!("{other:?}"),
    }
}

/// Returns a second process, which can copy the descriptors of the first.
fn importer(exporter: &'static Fake, contents: TicketContents) -> &'static Fake {
    let fake = unlimited();
    fake.pid.set(200);
    let process = exporter.memory();
    let tickets = lock(&process.ipc);
    let copy = |file: &dyn Fn() -> OwnedFd| File::from(file());
    for (list, files) in tickets.files() {
        let number = u64::try_from(list.as_raw_fd()).unwrap();
        let list = copy(&|| list.as_fd().try_clone_to_owned().unwrap());
        fake.offered.borrow_mut().insert(number, list);
        for file in files {
            let number = u64::try_from(file.as_raw_fd()).unwrap();
            let file = copy(&|| file.try_clone().unwrap());
            fake.offered.borrow_mut().insert(number, file);
        }
    }
    assert_eq!(contents.pid, 100);
    fake
}

#[test]
fn a_ticket_is_of_the_start_of_the_allocation() {
    let fake = unlimited();
    let large = allocate(fake, GRANULE);
    let contents = ticket(fake, large + 7);
    assert_eq!((contents.pid, contents.offset), (100, 0));
    assert_eq!(ticket(fake, large), contents, "it is exported once");
    let _first = allocate(fake, 100);
    let second = allocate(fake, 100);
    assert_eq!(ticket(fake, second).offset, 512);
}

#[test]
fn memory_is_shared_with_another_process_and_counts_in_the_first() {
    let exporter = unlimited();
    let _first = allocate(exporter, 100);
    let contents = ticket(exporter, allocate(exporter, 100));
    let fake = importer(exporter, contents);
    let opened = open(fake, &Ticket::new(contents), 1);
    let Outcome::Done(at) = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(at % GRANULE, 512);
    assert_eq!(published(fake), 0);
    // Opened twice, it is mapped once, and unmapped at the second close.
    assert_eq!(open(fake, &Ticket::new(contents), 1), Outcome::Done(at));
    assert_eq!(fake.mappings.borrow().len(), 1);
    assert_eq!(close(fake, at), Outcome::Done(SUCCESS));
    assert_eq!(fake.mappings.borrow().len(), 1);
    assert_eq!(
        free_memory(fake, at),
        Outcome::Fail(INVALID_VALUE),
        "it is not freed"
    );
    assert_eq!(close(fake, at), Outcome::Done(SUCCESS));
    assert!(fake.mappings.borrow().is_empty() && fake.physical.borrow().is_empty());
    assert_eq!(close(fake, at), Outcome::Fail(INVALID_VALUE));
}

#[test]
fn a_ticket_of_freed_memory_is_invalid() {
    let exporter = unlimited();
    let at = allocate(exporter, GRANULE);
    let contents = ticket(exporter, at);
    assert_eq!(free_memory(exporter, at), Outcome::Done(SUCCESS));
    let fake = importer(exporter, contents);
    assert_eq!(
        open(fake, &Ticket::new(contents), 1),
        Outcome::Fail(INVALID_VALUE)
    );
}

#[test]
fn a_list_of_another_ticket_is_not_imported() {
    let exporter = unlimited();
    let contents = ticket(exporter, allocate(exporter, GRANULE));
    let fake = importer(exporter, contents);
    let other = TicketContents {
        id: contents.id + 1,
        ..contents
    };
    assert_eq!(
        open(fake, &Ticket::new(other), 1),
        Outcome::Fail(INVALID_VALUE)
    );
    assert!(fake.physical.borrow().is_empty());
}

#[test]
fn a_process_does_not_open_its_own_ticket() {
    let fake = unlimited();
    let own = Ticket::new(ticket(fake, allocate(fake, GRANULE)));
    assert_eq!(open(fake, &own, 1), Outcome::Fail(INVALID_VALUE));
    fake.pid.set(200);
    assert_eq!(open(fake, &own, 2), Outcome::Fail(INVALID_VALUE));
    fake.process.set_active(false);
    assert_eq!(open(fake, &own, 1), Outcome::Pass(Reason::Inactive));
}

#[test]
fn memory_of_the_driver_has_the_drivers_handles() {
    let fake = unlimited();
    let outcome = get(fake, 0x77);
    assert!(
        matches!(outcome, Outcome::Pass(Reason::Foreign)),
        "{outcome:?}"
    );
    assert_eq!(close(fake, 0x77), Outcome::Pass(Reason::Foreign));
    let at = allocate(fake, 100);
    let outcome = get(fake, at + 100);
    assert!(
        matches!(outcome, Outcome::Fail(INVALID_VALUE)),
        "{outcome:?}"
    );
}

#[test]
fn a_failed_mapping_releases_what_was_imported() {
    let exporter = unlimited();
    let contents = ticket(exporter, allocate(exporter, GRANULE));
    let fake = importer(exporter, contents);
    fake.map_error.borrow_mut().push_back(999);
    assert_eq!(open(fake, &Ticket::new(contents), 1), Outcome::Fail(999));
    assert!(fake.physical.borrow().is_empty());
}

#[test]
fn an_offset_beyond_the_memory_opens_nothing() {
    let exporter = unlimited();
    let contents = ticket(exporter, allocate(exporter, GRANULE));
    let fake = importer(exporter, contents);
    let beyond = |offset| Ticket::new(TicketContents { offset, ..contents });
    for offset in [GRANULE, u64::MAX] {
        let opened = open(fake, &beyond(offset), 1);
        assert_eq!(opened, Outcome::Fail(INVALID_VALUE));
        assert!(fake.mappings.borrow().is_empty() && fake.physical.borrow().is_empty());
    }
    let Outcome::Done(at) = open(fake, &beyond(0), 1) else {
        panic!("it is opened");
    };
    let opened = open(fake, &beyond(u64::MAX), 1);
    assert_eq!(opened, Outcome::Fail(INVALID_VALUE));
    assert_eq!(close(fake, at), Outcome::Done(SUCCESS));
    assert!(fake.mappings.borrow().is_empty());
}
