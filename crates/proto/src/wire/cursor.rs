//! Bounds-checked reading and writing of little-endian fields, for the other formats only.

use alloc::vec::Vec;

/// The bytes ended before the field did.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the message is cut short")]
pub struct ShortInput;

/// Reads fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Returns the next `N` bytes.
    ///
    /// # Errors
    /// [`ShortInput`] if there are fewer.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ShortInput> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(ShortInput)?;
        self.0 = rest;
        Ok(*head)
    }

    /// Returns the next `len` bytes.
    ///
    /// # Errors
    /// [`ShortInput`] if there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], ShortInput> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(ShortInput)?;
        self.0 = rest;
        Ok(head)
    }

    /// Returns one byte.
    ///
    /// # Errors
    /// [`ShortInput`] at the end.
    pub fn u8(&mut self) -> Result<u8, ShortInput> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Returns the number in the next two bytes.
    ///
    /// # Errors
    /// [`ShortInput`] if there are fewer.
    pub fn u16(&mut self) -> Result<u16, ShortInput> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Returns the number in the next four bytes.
    ///
    /// # Errors
    /// [`ShortInput`] if there are fewer.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, ShortInput> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Returns the number in the next eight bytes.
    ///
    /// # Errors
    /// [`ShortInput`] if there are fewer.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, ShortInput> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

/// Appends fields to a vector.
#[derive(Debug, Default)]
pub struct FieldWriter(pub Vec<u8>);

impl FieldWriter {
    /// Appends bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends four bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
}
