"""Define the currencies and the number of decimals of their amounts.

Source: ISO 4217, list one (active codes). Funds and metals are left out, and so are the two units of account
with four decimals (CLF and UYW).
"""

from __future__ import annotations

from decimal import Decimal

DEFAULT_CURRENCY = "EUR"
DEFAULT_DECIMALS = 2

_WITHOUT_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_WITH_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"
_WITH_TWO_DECIMALS = """
AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF
CHF CNY COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL
HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP
MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD
SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS
VED VES WST XCD XCG YER ZAR ZMW ZWG
"""
DECIMALS_BY_CURRENCY: dict[str, int] = {
    code: decimals
    for decimals, codes in ((0, _WITHOUT_DECIMALS), (2, _WITH_TWO_DECIMALS), (3, _WITH_THREE_DECIMALS))
    for code in codes.split()
}


def decimals_of(currency: str) -> int:
    """Return the number of decimals of an amount in this currency: 0, 2 or 3.

    A code that is not in the table has two: earlier versions accepted any three letters.
    """
    return DECIMALS_BY_CURRENCY.get(currency, DEFAULT_DECIMALS)


def smallest_unit(currency: str) -> Decimal:
    """Return the smallest amount of a currency: 1 for JPY, 0.01 for EUR, 0.001 for KWD."""
    return Decimal(1).scaleb(-decimals_of(currency))
