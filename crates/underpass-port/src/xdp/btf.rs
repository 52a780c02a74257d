//! The types of a program's functions, as the kernel wants to know them of a program that has functions which are verified
//! by themselves: Documentation/bpf/btf.rst.

use super::assembler::Function;

/// Kinds of types.
const INT: u32 = 1;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;

/// The one type of numbers, of 64 bits.
const NUMBER: u32 = 1;

/// The types of these functions, and for each where it begins and which type it is.
pub(crate) fn describe(functions: &[Function]) -> (Vec<u8>, Vec<[u32; 2]>) {
    let mut strings = vec![0];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.bytes().chain([0]));
        at
    };
    let mut types = vec![name("u64"), INT << 24, 8, 64];
    let mut last = NUMBER;
    let mut places = Vec::new();
    for function in functions {
        // A function that is verified for each call has any argument: one number is said.
        let arguments = function.numbers.unwrap_or(1);
        types.extend([0, FUNC_PROTO << 24 | arguments, NUMBER]);
        for _ in 0..arguments {
            types.extend([name("number"), NUMBER]);
        }
        let global = u32::from(function.numbers.is_some());
        types.extend([name(function.name), FUNC << 24 | global, last + 1]);
        places.push([function.at, last + 2]);
        last += 2;
    }
    let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
    let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
    bytes.extend([1, 0]);
    let header = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
    bytes.extend(header.into_iter().flat_map(u32::to_ne_bytes));
    bytes.extend(types);
    bytes.extend(strings);
    (bytes, places)
}
