//! Identifiers: small dense integers which a caller assigns.

/// Id of a request, unique within its process. Later requests have larger ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestId(pub u64);

/// Id of a function, and of its model where it has one: reused once the function is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FunctionId(pub u32);

/// Id of an instance of a function, that is, of a pod: reused once the instance is gone and nothing of it is in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InstanceId(pub u32);

/// Id of a slot: a GPU or a slice of one, exclusive or with shared SMs. Dense, from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlotId(pub u32);
