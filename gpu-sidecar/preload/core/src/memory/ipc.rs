//! Wrappers of legacy inter-process handles.

use std::ffi::c_uint;

use preload_ops::System as _;
use preload_ops::memory::ipc;
use preload_state::memory::Ticket;

use crate::driver::{Address, Code, INVALID_VALUE};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::write_out;

hooks! { HOOKS:
    fn cuIpcGetMemHandle(handle: *mut Ticket, address: Address) = get;
    fn cuIpcOpenMemHandle(address: *mut Address, handle: Ticket, flags: c_uint) = open;
    fn cuIpcOpenMemHandle_v2(address: *mut Address, handle: Ticket, flags: c_uint) = open;
    fn cuIpcCloseMemHandle(address: Address) = |real, address| ipc::close(Host, address).or_call(real);
}

fn get(real: &dyn Fn() -> Code, out: *mut Ticket, address: Address) -> Code {
    if out.is_null() {
        return real();
    }
    ipc::get(Host, address).write_or_call(real, |ticket| write_out(out, ticket))
}

fn open(real: &dyn Fn() -> Code, out: *mut Address, ticket: Ticket, flags: c_uint) -> Code {
    if out.is_null() {
        // A ticket is no handle of the driver's.
        let is_ticket = Host.is_active() && ticket.read().is_some();
        return if is_ticket { INVALID_VALUE } else { real() };
    }
    ipc::open(Host, &ticket, flags).write_or_call(real, |at| write_out(out, at))
}
