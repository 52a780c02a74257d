//! IOAM namespaces and schemas: generic netlink `IOAM6`, and what of them and of the node's ids the packet
//! path needs. Linux: `net/ipv6/ioam6.c`.

pub(crate) mod request;
pub(crate) mod save;

use std::collections::BTreeMap;

use libc::{EEXIST, EINVAL, ENOENT};
use underpass_engine::tables::IoamNamespace;
use underpass_netlink::genetlink::{self, ioam6};
use underpass_netlink::{Attributes, Reply, RequestError, Type, policy};

const NAMESPACE: [Type; 8] = policy(&[
    (ioam6::ATTR_NS_ID, Type::U16),
    (ioam6::ATTR_NS_DATA, Type::U32),
    (ioam6::ATTR_NS_DATA_WIDE, Type::U64),
]);
const SCHEMA: [Type; 8] =
    policy(&[(ioam6::ATTR_SC_ID, Type::U32), (ioam6::ATTR_SC_DATA, Type::AtMost(ioam6::MAX_SCHEMA_DATA))]);
const BOTH: [Type; 8] = policy(&[
    (ioam6::ATTR_NS_ID, Type::U16),
    (ioam6::ATTR_SC_ID, Type::U32),
    (ioam6::ATTR_SC_NONE, Type::Flag),
]);

/// A namespace. Data with all bits set are none.
#[derive(Debug)]
struct Namespace {
    data: u32,
    data_wide: u64,
    schema: Option<u32>,
}

#[derive(Debug)]
struct Schema {
    /// Padded to a multiple of 4 bytes.
    data: Box<[u8]>,
    namespace: Option<u16>,
}

/// The namespaces and schemas, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Ioam {
    namespaces: BTreeMap<u16, Namespace>,
    schemas: BTreeMap<u32, Schema>,
    generation: u64,
}

impl Ioam {
    /// What the packet path needs of the namespaces.
    pub fn compile(&self) -> Box<[IoamNamespace]> {
        let compiled = self.namespaces.iter().map(|(&id, namespace)| {
            let schema = namespace.schema.and_then(|id| Some((id, self.schemas.get(&id)?)));
            let snapshot = schema.map(|(id, schema)| {
                let length = (schema.data.len() / 4) as u32;
                let head = (id | length << 24).to_be_bytes();
                head.iter().chain(&schema.data).copied().collect()
            });
            IoamNamespace { id, data: namespace.data, data_wide: namespace.data_wide, schema: snapshot }
        });
        compiled.collect()
    }

    fn detach_schema(&mut self, id: Option<u32>) {
        if let Some(schema) = id.and_then(|id| self.schemas.get_mut(&id)) {
            schema.namespace = None;
        }
    }

    fn detach_namespace(&mut self, id: Option<u16>) {
        if let Some(namespace) = id.and_then(|id| self.namespaces.get_mut(&id)) {
            namespace.schema = None;
        }
    }

    /// `IOAM6_CMD_ADD_NAMESPACE`.
    fn add_namespace(&mut self, attributes: &Attributes<'_, 8>) -> Result<(), RequestError> {
        let id = namespace_id(attributes)?;
        if self.namespaces.contains_key(&id) {
            return Err(RequestError::errno(EEXIST));
        }
        let data = attributes.get(ioam6::ATTR_NS_DATA).map_or(u32::MAX, |data| data.u32());
        let data_wide = attributes.get(ioam6::ATTR_NS_DATA_WIDE).map_or(u64::MAX, |data| data.u64());
        self.namespaces.insert(id, Namespace { data, data_wide, schema: None });
        Ok(())
    }

    /// `IOAM6_CMD_DEL_NAMESPACE`.
    fn delete_namespace(&mut self, attributes: &Attributes<'_, 8>) -> Result<(), RequestError> {
        let id = namespace_id(attributes)?;
        let namespace = self.namespaces.remove(&id).ok_or(RequestError::errno(ENOENT))?;
        self.detach_schema(namespace.schema);
        Ok(())
    }

    /// `IOAM6_CMD_ADD_SCHEMA`.
    fn add_schema(&mut self, attributes: &Attributes<'_, 8>) -> Result<(), RequestError> {
        let data = attributes.get(ioam6::ATTR_SC_DATA).ok_or(RequestError::errno(EINVAL));
        let id = schema_id(attributes)?;
        let mut data = data?.value.to_vec();
        if self.schemas.contains_key(&id) {
            return Err(RequestError::errno(EEXIST));
        }
        data.resize(data.len().next_multiple_of(4), 0);
        self.schemas.insert(id, Schema { data: data.into(), namespace: None });
        Ok(())
    }

    /// `IOAM6_CMD_DEL_SCHEMA`.
    fn delete_schema(&mut self, attributes: &Attributes<'_, 8>) -> Result<(), RequestError> {
        let id = schema_id(attributes)?;
        let schema = self.schemas.remove(&id).ok_or(RequestError::errno(ENOENT))?;
        self.detach_namespace(schema.namespace);
        Ok(())
    }

    /// `IOAM6_CMD_NS_SET_SCHEMA`: each belongs to one of the other at most.
    fn set_schema(&mut self, attributes: &Attributes<'_, 8>) -> Result<(), RequestError> {
        let missing = RequestError::errno(ENOENT);
        let none = attributes.get(ioam6::ATTR_SC_NONE).is_some();
        let id = namespace_id(attributes)?;
        let schema = if none { None } else { Some(schema_id(attributes)?) };
        let old = self.namespaces.get(&id).ok_or(missing.clone())?.schema;
        if schema.is_some_and(|schema| !self.schemas.contains_key(&schema)) {
            return Err(missing);
        }
        self.detach_schema(old);
        let owner = schema.and_then(|schema| self.schemas.get_mut(&schema)?.namespace.replace(id));
        self.detach_namespace(owner);
        if let Some(namespace) = self.namespaces.get_mut(&id) {
            namespace.schema = schema;
        }
        Ok(())
    }
}

fn namespace_id(attributes: &Attributes<'_, 8>) -> Result<u16, RequestError> {
    Ok(attributes.get(ioam6::ATTR_NS_ID).ok_or(RequestError::errno(EINVAL))?.u16())
}

fn schema_id(attributes: &Attributes<'_, 8>) -> Result<u32, RequestError> {
    Ok(attributes.get(ioam6::ATTR_SC_ID).ok_or(RequestError::errno(EINVAL))?.u32())
}

/// What a request changes by its attributes.
type Change = fn(&mut Ioam, &Attributes<'_, 8>) -> Result<(), RequestError>;

fn write_namespace(reply: &mut Reply<'_>, id: u16, namespace: &Namespace) {
    reply.fixed(&genetlink::header(ioam6::CMD_DUMP_NAMESPACES, ioam6::VERSION));
    reply.u16(ioam6::ATTR_NS_ID, id);
    if namespace.data != u32::MAX {
        reply.u32(ioam6::ATTR_NS_DATA, namespace.data);
    }
    if namespace.data_wide != u64::MAX {
        reply.u64_aligned(ioam6::ATTR_NS_DATA_WIDE, namespace.data_wide, ioam6::ATTR_PAD);
    }
    if let Some(schema) = namespace.schema {
        reply.u32(ioam6::ATTR_SC_ID, schema);
    }
}
